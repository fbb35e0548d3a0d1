"""An audit in slices: it finds what one statement finds, and no statement reads more than a slice."""

from __future__ import annotations

from datetime import timedelta

import pytest

from reltask.errors import TransientError
from reltask.model.audit import BEFORE_ALL, KEPT_FOR, LAST_OF_ALL, AuditProgress, Break
from reltask.producer import audit as auditing
from reltask.producer.audit import audit
from tests.store.store_harness import LOCK, StoreHarness, new_job, recurring
from tests.store.test_audit import damage

MINUTE = timedelta(minutes=1)


async def broken_jobs(harness: StoreHarness) -> None:
    """Seven jobs that have ended slots 1 to 3; two of them have lost slot 2. And three that have not run yet."""
    jobs = [recurring(key=f"{number}") for number in range(7)]
    await harness.add(*jobs)
    for _ in range(3):
        for claim in (await harness.claim(limit=10)).claims:
            assert await harness.complete(claim, next_run_time=harness.now() + timedelta(minutes=10))
        harness.now.advance(minutes=10)
    await harness.add(*(new_job(delay=timedelta(hours=1)) for _ in range(3)))
    for number in (1, 5):
        await damage(harness, f"delete from @runs where slot_no = 2 and job_id = '{jobs[number].id}'")
    await damage(harness, f"update @jobs set fence = 9 where id = '{jobs[6].id}'")


def numbers(found: list[Break]) -> list[tuple[str, str, int, int, int | None]]:
    return sorted((str(one.job_id), one.kind, one.first_no, one.last_no, one.starts_at) for one in found)


@pytest.mark.parametrize("rows", [0, 1, 4, 1000])
async def test_slices_find_what_one_statement_finds(harness: StoreHarness, rows: int) -> None:
    """Each job belongs to one slice, whatever the size of the slices."""
    await broken_jobs(harness)
    whole = await harness.store.audit_slots(kept_for=KEPT_FOR)
    assert len(whole) == 5
    found, after = list[Break](), BEFORE_ALL
    while after != LAST_OF_ALL:
        upto = await harness.store.audit_slice(after=after, rows=rows) or LAST_OF_ALL
        found += await harness.store.audit_slots(kept_for=KEPT_FOR, after=after, upto=upto)
        after = upto
    assert numbers(found) == numbers(whole)


async def test_a_slice_ends_with_a_job(harness: StoreHarness) -> None:
    """It is about as large as asked for; what is left at the end needs no bound."""
    await broken_jobs(harness)
    first = await harness.store.audit_slice(after=BEFORE_ALL, rows=6)
    assert first is not None
    second = await harness.store.audit_slice(after=first, rows=6)
    assert second not in (None, first)
    assert await harness.store.audit_slice(after=BEFORE_ALL, rows=1000) is None


async def test_an_audit_reports_its_progress(harness: StoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five parts; that of the slots counts the ledger rows that it has read. The findings are in order."""
    await broken_jobs(harness)
    monkeypatch.setattr(auditing, "SLICE", 10)
    seen: list[AuditProgress] = []
    report = await audit(harness.store, task=None, lock_timeout=LOCK, timeout=MINUTE, watch=seen.append)
    assert [one.part for one in seen] == ["tasks", "slots", "slots", "waiting", "losses", "limits"]
    assert [(one.rows, one.of_rows) for one in seen if one.part == "slots"] == [(0, 19), (10, 19)]
    assert report.breaks == await harness.store.audit_slots(kept_for=KEPT_FOR)


async def test_an_audit_has_a_time_limit(harness: StoreHarness) -> None:
    """It is for the whole audit, whatever a statement may take, and the error says how to change it."""
    with pytest.raises(TransientError, match="did not end within 0s") as raised:
        await audit(harness.store, task=None, lock_timeout=LOCK, timeout=timedelta(0))
    assert "--timeout" in str(raised.value.remedy)
