"""Completing, failing and releasing: one ledger row per run, the lock cleared, and the slot as the rule says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from reltask.errors import AmbiguousError, TransientError
from reltask.model.job import Completion, Failure, Hold, Outcome, Release, State
from reltask.stores.sqlite.store import SqliteStore
from tests.store.bench import LOCK, START, Bench, new_job, recurring

SECOND = timedelta(seconds=1)


async def assert_unlocked(bench: Bench, job_id: UUID) -> None:
    view = await bench.job(job_id)
    assert (view.locked_by, view.locked_at, view.heartbeat_at, view.lock_expires_at, view.progress) == (None,) * 5


# Completing


async def test_completed_one_off_is_gone(bench: Bench) -> None:
    """The row is removed; the ledger keeps what happened."""
    claim = await bench.claimed(new_job(key="k"))
    bench.now.advance(seconds=4)
    assert await bench.complete(claim, result='{"answer": 42}')
    assert await bench.store.read_job(claim.job_id) is None
    (run,) = await bench.runs(claim.job_id)
    assert (run.fence, run.slot_no, run.attempt, run.outcome) == (1, 1, 1, Outcome.SUCCEEDED)
    assert (run.task, run.key, run.queue, run.worker) == ("greet", "k", "default", "alice")
    assert (run.result, run.error) == ('{"answer": 42}', None)
    assert (run.nominal_time, run.due_at, run.claimed_at) == (START, START, START)
    assert run.finished_at == bench.now()


async def test_completed_recurring_job_gets_its_next_slot(bench: Bench) -> None:
    """Slot number + 1, the given nominal time, attempts from nought, lock cleared; the fence grows at the claim."""
    claim = await bench.claimed(recurring())
    await bench.store.record_progress("alice", claim.hold, '"half"')
    bench.now.advance(seconds=4)
    following = claim.slot_started_at + timedelta(minutes=10)
    assert await bench.complete(claim, next_run_time=following)
    await assert_unlocked(bench, claim.job_id)
    view = await bench.job(claim.job_id)
    assert (view.state, view.slot_no, view.fence, view.attempt) == (State.READY, 2, 1, 0)
    assert view.next_run_time == view.due_at == following
    assert view.last_run_time == bench.now()
    bench.now.value = following
    again = await bench.claim_one()
    assert (again.slot_no, again.fence, again.slot_started_at) == (2, 2, following)
    assert again.idempotency_key != claim.idempotency_key


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SKIPPED])
async def test_each_ending_ends_the_slot(bench: Bench, outcome: Outcome) -> None:
    """Succeeded, cancelled and skipped all move on to the next slot, and the ledger tells them apart."""
    claim = await bench.claimed(recurring())
    await bench.complete(claim, outcome=outcome, error="why", next_run_time=START + SECOND)
    (run,) = await bench.runs(claim.job_id)
    assert (run.outcome, run.error, run.outcome.ends_slot) == (outcome, "why", True)
    assert (await bench.job(claim.job_id)).slot_no == 2


async def test_backoff_does_not_outlive_its_slot(bench: Bench) -> None:
    """After a failure and a success the next slot is due at its own nominal time."""
    claim = await bench.claimed(recurring())
    await bench.fail(claim, delay=5 * SECOND)
    bench.now.advance(seconds=5)
    await bench.complete(await bench.claim_one(), next_run_time=START + timedelta(minutes=10))
    assert (await bench.job(claim.job_id)).due_at == START + timedelta(minutes=10)


@pytest.mark.parametrize("back", [timedelta(0), timedelta(days=1)], ids=["same time", "clock set back"])
async def test_next_run_time_strictly_grows(bench: Bench, back: timedelta) -> None:
    """Whatever the clocks do, the next nominal time is later than the last."""
    claim = await bench.claimed(recurring())
    bench.now.value -= back
    assert await bench.complete(claim, next_run_time=claim.nominal - back)
    assert (await bench.job(claim.job_id)).next_run_time == claim.nominal + timedelta(microseconds=1)


async def test_skipped_slots_get_numbers_fences_and_ledger_rows(bench: Bench) -> None:
    """Slots passed over follow the run's own: slot numbers and fences grow without a gap, and no worker ran them."""
    claim = await bench.claimed(recurring(key="k"))
    passed = (START + SECOND, START + 2 * SECOND)
    assert await bench.complete(claim, skipped=passed, next_run_time=START + 3 * SECOND)
    runs = await bench.runs(claim.job_id)
    assert [(run.fence, run.slot_no, run.outcome) for run in runs] == [
        (1, 1, Outcome.SUCCEEDED),
        (2, 2, Outcome.SKIPPED),
        (3, 3, Outcome.SKIPPED),
    ]
    assert [(run.nominal_time, run.worker, run.attempt, run.claimed_at, run.key) for run in runs[1:]] == [
        (nominal, None, 0, None, "k") for nominal in passed
    ]
    bench.now.advance(seconds=3)
    again = await bench.claim_one()
    assert (again.slot_no, again.fence, again.nominal) == (4, 4, START + 3 * SECOND)


async def test_fences_and_slots_grow_without_gaps(bench: Bench) -> None:
    """Every claim is a fence, every fence has one ledger row, every slot one ending."""
    await bench.add(recurring())
    for turn in range(12):
        claim = await bench.claim_one(isolated_after=timedelta(0))
        bench.now.advance(seconds=1)
        match turn % 4:
            case 0:
                await bench.fail(claim)
            case 1:
                await bench.release(claim)
            case 2:
                await bench.lose(claim)
            case _:
                await bench.complete(claim, next_run_time=bench.now())
    runs = await bench.runs(claim.job_id)
    assert [run.fence for run in runs] == list(range(1, 13))
    assert [run.slot_no for run in runs] == [1] * 4 + [2] * 4 + [3] * 4
    assert [run.slot_no for run in runs if run.outcome.ends_slot] == [1, 2, 3]


async def test_mixed_batch_settles_what_matches(bench: Bench) -> None:
    """One-offs, recurring jobs, rows of others and unknown ids in one batch: only one's own are accepted."""
    await bench.add(new_job(), recurring(), new_job(task="theirs"))
    one_off, repeated = (await bench.claim(limit=2)).claims
    theirs = await bench.claim_one("bob", tasks=["theirs"])
    batch = [
        Completion(hold=Hold(uuid4(), 1)),
        Completion(hold=theirs.hold),
        Completion(hold=one_off.hold, next_run_time=START + SECOND if one_off.schedule else None),
        Completion(hold=repeated.hold, next_run_time=START + SECOND if repeated.schedule else None),
    ]
    settled = await bench.store.complete_jobs("alice", batch)
    assert {accepted.hold for accepted in settled} == {one_off.hold, repeated.hold}
    assert (await bench.job(theirs.job_id)).locked_by == "bob"
    assert {run.job_id for run in await bench.store.list_runs()} == {one_off.job_id, repeated.job_id}


async def test_named_twice_settled_once(bench: Bench) -> None:
    """A hold that stands twice in a batch ends once, and nobody else's row in the batch suffers."""
    await bench.add(new_job(), new_job())
    first, second = (await bench.claim(limit=2)).claims
    settled = await bench.store.complete_jobs(
        "alice", [Completion(hold=first.hold), Completion(hold=first.hold), Completion(hold=second.hold)]
    )
    assert sorted(accepted.hold for accepted in settled) == sorted([first.hold, second.hold])
    assert len(await bench.store.list_runs()) == 2


async def test_one_success_per_slot_by_constraint(bench: Bench) -> None:
    """A slot that the ledger shows as ended is refused by constraint; the other rows of the batch are settled."""
    await bench.add(recurring(key="a"), new_job(), recurring(key="b"))
    claims = (await bench.claim(limit=3)).claims
    (bad,) = [claim for claim in claims if claim.key == "a"]
    await bench.backend.forge_success(bad)
    batch = [Completion(hold=claim.hold, next_run_time=START + SECOND if claim.key else None) for claim in claims]
    settled = await bench.store.complete_jobs("alice", batch)
    assert {accepted.hold for accepted in settled} == {claim.hold for claim in claims if claim is not bad}
    assert (await bench.job(bad.job_id)).locked_by == "alice"
    assert [run.fence for run in await bench.runs(bad.job_id)] == [-1]


async def test_an_error_after_some_rows_were_settled_leaves_doubt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a batch is settled row by row and breaks off, "certainly not applied" would be untrue of the first rows."""
    await bench.add(recurring(key="a"), new_job(), new_job())
    claims = sorted((await bench.claim(limit=3)).claims, key=lambda claim: claim.key == "a")
    await bench.backend.forge_success(claims[-1])
    sending = "_write" if isinstance(bench.store, SqliteStore) else "_ask"
    send, sent = getattr(bench.store, sending), []

    async def breaking_off(*args: Any, **columns: Any) -> Any:
        sent.append(args)
        if len(sent) == 3:  # after the whole batch, and one row
            raise TransientError("away")
        return await send(*args, **columns)

    monkeypatch.setattr(bench.store, sending, breaking_off)
    with pytest.raises(AmbiguousError, match="1 of 3") as caught:
        await bench.store.complete_jobs("alice", [Completion(hold=c.hold, next_run_time=c.due_at) for c in claims])
    assert isinstance(caught.value.__cause__, TransientError)
    assert len(await bench.runs(claims[0].job_id)) == 1


# Failing


async def test_failure_keeps_the_slot_and_sets_the_backoff(bench: Bench) -> None:
    """Ledger row with the traceback; nominal time and slot stay; due again after the delay; the attempt counts."""
    claim = await bench.claimed(recurring())
    bench.now.advance(seconds=4)
    assert await bench.fail(claim, error="Traceback\n  …", delay=9 * SECOND)
    await assert_unlocked(bench, claim.job_id)
    view = await bench.job(claim.job_id)
    assert (view.state, view.slot_no, view.attempt, view.next_run_time) == (State.READY, 1, 1, claim.nominal)
    assert view.due_at == bench.now() + 9 * SECOND
    assert view.last_run_time is None
    (run,) = await bench.runs(claim.job_id)
    assert (run.outcome, run.error, run.worker, run.result) == (Outcome.FAILED, "Traceback\n  …", "alice", None)
    bench.now.advance(seconds=9)
    again = await bench.claim_one()
    assert (again.slot_no, again.attempt, again.fence, again.nominal) == (1, 2, 2, claim.nominal)


async def test_last_attempt_makes_it_dead(bench: Bench) -> None:
    """With max_attempts = 2 the second failure is final, and the answer says so."""
    await bench.add(new_job(max_attempts=2))
    deaths = []
    for _ in range(2):
        claim = await bench.claim_one()
        failure = Failure(hold=claim.hold, error="boom", delay=timedelta(0))
        deaths += [settled.dead for settled in await bench.store.fail_jobs("alice", [failure])]
    assert deaths == [False, True]
    assert (await bench.job(claim.job_id)).state is State.DEAD


async def test_unlimited_attempts_never_die(bench: Bench) -> None:
    """None means no limit."""
    await bench.add(recurring(max_attempts=None))
    for _ in range(20):
        await bench.fail(await bench.claim_one())
    (view,) = await bench.store.list_jobs()
    assert (view.state, view.attempt) == (State.READY, 20)


# Releasing


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.SNOOZED, Outcome.ABANDONED])
async def test_release_returns_the_attempt(bench: Bench, outcome: Outcome) -> None:
    """Ledger row; slot and nominal time stay; the attempt is given back; without a delay it is due as before."""
    claim = await bench.claimed()
    assert await bench.release(claim, outcome=outcome, error="shutting down")
    await assert_unlocked(bench, claim.job_id)
    view = await bench.job(claim.job_id)
    assert (view.state, view.slot_no, view.attempt, view.due_at) == (State.READY, 1, 0, claim.due_at)
    (run,) = await bench.runs(claim.job_id)
    assert (run.outcome, run.error, run.attempt) == (outcome, "shutting down", 1)
    assert (await bench.claim_one()).attempt == 1


async def test_snooze_comes_again_later(bench: Bench) -> None:
    """With a delay the slot is due that much later, by the database's time; the nominal time stays."""
    claim = await bench.claimed()
    bench.now.advance(seconds=2)
    await bench.release(claim, outcome=Outcome.SNOOZED, delay=30 * SECOND)
    view = await bench.job(claim.job_id)
    assert (view.due_at, view.next_run_time) == (bench.now() + 30 * SECOND, claim.nominal)


async def test_release_without_delay_keeps_an_earlier_backoff(bench: Bench) -> None:
    """What an earlier failure set stands."""
    claim = await bench.claimed()
    await bench.fail(claim, delay=5 * SECOND)
    bench.now.advance(seconds=5)
    again = await bench.claim_one()
    await bench.release(again)
    assert (await bench.job(claim.job_id)).due_at == again.due_at == START + 5 * SECOND


async def test_released_isolated_job_is_isolated_no_more(bench: Bench) -> None:
    """Its last run was not lost: it may share a claim again."""
    claim = await bench.claimed()
    await bench.lose(claim)
    again = await bench.claim_one(isolated_after=timedelta(0))
    assert again.isolated
    await bench.release(again)
    assert not (await bench.job(claim.job_id)).isolated


@pytest.mark.parametrize("verb", ["fail", "complete"])
async def test_settled_isolated_job_is_isolated_no_more(bench: Bench, verb: str) -> None:
    """Only a *lost* last run isolates."""
    claim = await bench.claimed(recurring())
    await bench.lose(claim)
    again = await bench.claim_one(isolated_after=timedelta(0))
    if verb == "fail":
        await bench.fail(again)
    else:
        await bench.complete(again, next_run_time=bench.now() + SECOND)
    assert not (await bench.job(claim.job_id)).isolated


# Settling a lost answer


async def test_read_outcomes_settles_a_lost_answer(bench: Bench) -> None:
    """The ledger says how each run ended; runs that have not ended, or never were, are missing."""
    await bench.add(new_job(), new_job(), new_job(), new_job())
    done, failed, released, running = (await bench.claim(limit=4)).claims
    await bench.complete(done)
    await bench.fail(failed)
    await bench.release(released, outcome=Outcome.SNOOZED)
    unknown = Hold(uuid4(), 1)
    holds = [done.hold, failed.hold, released.hold, running.hold, unknown]
    assert await bench.store.read_outcomes(holds) == {
        done.hold: Outcome.SUCCEEDED,
        failed.hold: Outcome.FAILED,
        released.hold: Outcome.SNOOZED,
    }
    assert await bench.store.read_outcomes([]) == {}


async def test_read_outcomes_tells_runs_of_one_job_apart(bench: Bench) -> None:
    """Asked for one run, the ledger speaks of that run alone, not of the job's others."""
    first = await bench.claimed()
    await bench.fail(first)
    second = await bench.claim_one()
    await bench.complete(second)
    assert await bench.store.read_outcomes([first.hold]) == {first.hold: Outcome.FAILED}
    assert await bench.store.read_outcomes([Hold(first.job_id, 3)]) == {}


async def test_sending_a_completion_again_changes_nothing(bench: Bench) -> None:
    """The second sending is not accepted, and the ledger shows that the first one was."""
    claim = await bench.claimed(recurring())
    assert await bench.complete(claim, next_run_time=START + SECOND)
    before = await bench.snapshot()
    assert not await bench.complete(claim, next_run_time=START + SECOND)
    assert await bench.snapshot() == before
    assert await bench.store.read_outcomes([claim.hold]) == {claim.hold: Outcome.SUCCEEDED}


async def test_empty_batches_do_nothing(bench: Bench) -> None:
    """No rows, no answer, no error."""
    assert await bench.store.enqueue_jobs([]) == set()
    assert await bench.store.complete_jobs("alice", []) == []
    assert await bench.store.fail_jobs("alice", []) == []
    assert await bench.store.release_jobs("alice", []) == []
    assert await bench.store.read_holds("alice", []) == set()
    assert await bench.store.reclaim_jobs() == []


@pytest.mark.slow
async def test_a_thousand_at_once(bench: Bench) -> None:
    """The largest batch goes through every verb whole."""
    jobs = [new_job() for _ in range(1000)]
    await bench.add(*jobs)
    claims = (await bench.claim(limit=1000)).claims
    assert {claim.job_id for claim in claims} == {job.id for job in jobs}
    holds = [claim.hold for claim in claims]
    assert (await bench.store.heartbeat_jobs("alice", holds, alive_for=LOCK)).renewed == set(holds)
    assert await bench.store.read_holds("alice", holds) == set(holds)
    failures = [Failure(hold=hold, error="boom", delay=timedelta(0)) for hold in holds]
    assert len(await bench.store.fail_jobs("alice", failures)) == 1000
    holds = [claim.hold for claim in (await bench.claim(limit=1000)).claims]
    assert (
        len(await bench.store.release_jobs("alice", [Release(hold=hold, outcome=Outcome.RELEASED) for hold in holds]))
        == 1000
    )
    holds = [claim.hold for claim in (await bench.claim(limit=1000)).claims]
    assert len(await bench.store.complete_jobs("alice", [Completion(hold=hold) for hold in holds])) == 1000
    assert len(await bench.store.read_outcomes(holds)) == 1000
    assert await bench.store.list_jobs() == []
