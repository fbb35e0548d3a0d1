"""Times between Python and PostgreSQL: whatever a column holds, an answer can be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.errors import AmbiguousError, PermanentError
from reltask.model.job import EARLIEST, LATEST
from reltask.stores.postgres import connections
from reltask.stores.postgres.connections import _from_wire, _to_wire
from reltask.stores.postgres.errors import statement_failed
from reltask.stores.postgres.store import PostgresStore
from tests.store.store_harness import ALIVE, new_job, request

COLUMN = st.integers(-(2**63), 2**63 - 1)
"""What PostgreSQL stores: microseconds since 2000; the ends of the range are the infinities."""


@given(COLUMN)
def test_every_stored_time_is_read(stored: int) -> None:
    """As itself; or, if Python has no such time, as one outside the valid range on the same side."""
    read = _from_wire((stored,))
    assert read.tzinfo is UTC
    if EARLIEST <= read < LATEST:
        assert _to_wire(read) == (stored,)
    else:
        assert (read < EARLIEST) == (stored < 0)


@given(st.datetimes(datetime(1970, 1, 1), datetime(8999, 12, 31), timezones=st.timezones()))  # noqa: DTZ001
def test_every_valid_time_survives(moment: datetime) -> None:
    """To the microsecond, whatever its zone."""
    assert _from_wire(_to_wire(moment)) == moment.astimezone(UTC)


async def test_answer_that_cannot_be_decoded_is_ambiguous(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim was committed before its answer was read: its rows are found by its token."""

    def fail(_stored: tuple[int]) -> datetime:
        raise OverflowError("date value out of range")

    token = uuid4()
    monkeypatch.setattr(connections, "_from_wire", fail)
    store = PostgresStore(postgres_url)
    job = new_job()
    await store.enqueue_jobs([job])
    with pytest.raises(AmbiguousError):
        await store.claim_jobs(request(token=token))
    answer = await store.heartbeat_jobs("alice", [], alive_for=ALIVE, tokens=[token])
    assert [hold.job_id for hold in answer.strays] == [job.id]
    await store.close()


async def test_value_that_cannot_be_encoded_is_refused(postgres_url: str) -> None:
    """Nothing was sent: sending it again would not help."""
    store = PostgresStore(postgres_url)
    with pytest.raises(PermanentError):
        await store.enqueue_jobs([new_job(priority=10**9)])
    with pytest.raises(PermanentError):
        await store.enqueue_jobs([new_job(delay=timedelta.max)])
    assert await store.list_jobs() == []
    await store.close()


def test_error_of_the_driver_itself() -> None:
    """Before it sends, asyncpg raises InterfaceError, or an error of class 22. Later, anything."""
    for error in (OverflowError("hush"), ValueError("hush"), TypeError("hush")):
        writing = statement_failed(error, verb="claim_jobs", writes=True)
        assert type(writing) is AmbiguousError
        assert "hush" not in str(writing)
        assert type(statement_failed(error, verb="read_status", writes=False)) is PermanentError
    for unsent in (asyncpg.InterfaceError("the server expects 1 argument"), asyncpg.DataError("hush")):
        assert type(statement_failed(unsent, verb="claim_jobs", writes=True)) is PermanentError
