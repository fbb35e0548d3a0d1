"""Completing, failing and releasing: one ledger row per run, the lock cleared, and the slot as the rule says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from reltask.errors import AmbiguousError, TransientError
from reltask.model.job import Completion, Failure, Hold, Outcome, Release, Settled, State
from tests.store.store_harness import LOCK, START, StoreHarness, new_job, recurring

SECOND = timedelta(seconds=1)


async def assert_unlocked(harness: StoreHarness, job_id: UUID) -> None:
    view = await harness.job(job_id)
    assert (view.locked_by, view.locked_at, view.heartbeat_at, view.lock_expires_at) == (None,) * 4


# Completing


async def test_completed_one_off_is_gone(harness: StoreHarness) -> None:
    """The row is removed; the ledger keeps the run."""
    claim = await harness.claimed(new_job(key="k"))
    harness.now.advance(seconds=4)
    assert await harness.complete(claim, result='{"answer": 42}')
    assert await harness.store.read_job(claim.job_id) is None
    (run,) = await harness.runs(claim.job_id)
    assert (run.fence, run.slot_no, run.attempt, run.outcome) == (1, 1, 1, Outcome.SUCCEEDED)
    assert (run.task, run.key, run.queue, run.worker) == ("greet", "k", "default", "alice")
    assert (run.result, run.error) == ('{"answer": 42}', None)
    assert (run.nominal_time, run.due_at, run.claimed_at) == (START, START, START)
    assert run.finished_at == harness.now()


async def test_completed_recurring_job_gets_its_next_slot(harness: StoreHarness) -> None:
    """Slot number + 1, the given nominal time, attempts from 0, lock cleared; the fence grows at the claim."""
    claim = await harness.claimed(recurring())
    await harness.store.record_progress("alice", claim.hold, '"half"')
    harness.now.advance(seconds=4)
    following = claim.slot_started_at + timedelta(minutes=10)
    assert await harness.complete(claim, next_run_time=following)
    await assert_unlocked(harness, claim.job_id)
    view = await harness.job(claim.job_id)
    assert (view.state, view.slot_no, view.fence, view.attempt) == (State.READY, 2, 1, 0)
    assert view.next_run_time == view.due_at == following
    assert view.last_run_time == harness.now()
    harness.now.value = following
    again = await harness.claim_one()
    assert (again.slot_no, again.fence, again.slot_started_at) == (2, 2, following)
    assert again.idempotency_key != claim.idempotency_key


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SKIPPED])
async def test_each_ending_ends_the_slot(harness: StoreHarness, outcome: Outcome) -> None:
    """Succeeded, cancelled and skipped all move on to the next slot, and the ledger distinguishes them."""
    claim = await harness.claimed(recurring())
    await harness.complete(claim, outcome=outcome, error="why", next_run_time=START + SECOND)
    (run,) = await harness.runs(claim.job_id)
    assert (run.outcome, run.error, run.outcome.ends_slot) == (outcome, "why", True)
    assert (await harness.job(claim.job_id)).slot_no == 2


async def test_backoff_does_not_outlive_its_slot(harness: StoreHarness) -> None:
    """After a failure and a success the next slot is due at its own nominal time."""
    claim = await harness.claimed(recurring())
    await harness.fail(claim, delay=5 * SECOND)
    harness.now.advance(seconds=5)
    await harness.complete(await harness.claim_one(), next_run_time=START + timedelta(minutes=10))
    assert (await harness.job(claim.job_id)).due_at == START + timedelta(minutes=10)


@pytest.mark.parametrize("back", [timedelta(0), timedelta(days=1)], ids=["same time", "clock set back"])
async def test_next_run_time_strictly_grows(harness: StoreHarness, back: timedelta) -> None:
    """Whatever the clocks show, the next nominal time is later than the last."""
    claim = await harness.claimed(recurring())
    harness.now.value -= back
    assert await harness.complete(claim, next_run_time=claim.nominal - back)
    assert (await harness.job(claim.job_id)).next_run_time == claim.nominal + timedelta(microseconds=1)


async def test_skipped_slots_get_numbers_fences_and_ledger_rows(harness: StoreHarness) -> None:
    """Skipped slots follow the run's own: slot numbers and fences grow without a gap, and no worker ran them."""
    claim = await harness.claimed(recurring(key="k"))
    passed = (START + SECOND, START + 2 * SECOND)
    assert await harness.complete(claim, skipped=passed, next_run_time=START + 3 * SECOND)
    runs = await harness.runs(claim.job_id)
    assert [(run.fence, run.slot_no, run.outcome) for run in runs] == [
        (1, 1, Outcome.SUCCEEDED),
        (2, 2, Outcome.SKIPPED),
        (3, 3, Outcome.SKIPPED),
    ]
    assert [(run.nominal_time, run.worker, run.attempt, run.claimed_at, run.key) for run in runs[1:]] == [
        (nominal, None, 0, None, "k") for nominal in passed
    ]
    harness.now.advance(seconds=3)
    again = await harness.claim_one()
    assert (again.slot_no, again.fence, again.nominal) == (4, 4, START + 3 * SECOND)


async def test_fences_and_slots_grow_without_gaps(harness: StoreHarness) -> None:
    """Every claim is a fence, every fence has one ledger row, every slot one ending."""
    await harness.add(recurring())
    for turn in range(12):
        claim = await harness.claim_one()
        harness.now.advance(seconds=1)
        match turn % 4:
            case 0:
                await harness.fail(claim)
            case 1:
                await harness.release(claim)
            case 2:
                await harness.lose(claim)
            case _:
                await harness.complete(claim, next_run_time=harness.now())
    runs = await harness.runs(claim.job_id)
    assert [run.fence for run in runs] == list(range(1, 13))
    assert [run.slot_no for run in runs] == [1] * 4 + [2] * 4 + [3] * 4
    assert [run.slot_no for run in runs if run.outcome.ends_slot] == [1, 2, 3]


async def test_mixed_batch_settles_what_matches(harness: StoreHarness) -> None:
    """One-offs, recurring jobs, other workers' rows and unknown ids in one batch: only own ones are accepted."""
    await harness.add(new_job(), recurring(), new_job(task="theirs"))
    one_off, repeated = (await harness.claim(limit=2)).claims
    theirs = await harness.claim_one("bob", tasks=["theirs"])
    batch = [
        Completion(hold=Hold(uuid4(), 1)),
        Completion(hold=theirs.hold),
        Completion(hold=one_off.hold, next_run_time=START + SECOND if one_off.schedule else None),
        Completion(hold=repeated.hold, next_run_time=START + SECOND if repeated.schedule else None),
    ]
    settled = await harness.store.complete_jobs("alice", batch)
    assert {accepted.hold for accepted in settled} == {one_off.hold, repeated.hold}
    assert (await harness.job(theirs.job_id)).locked_by == "bob"
    assert {run.job_id for run in await harness.store.list_runs()} == {one_off.job_id, repeated.job_id}


async def test_named_twice_settled_once(harness: StoreHarness) -> None:
    """A hold that is twice in a batch ends once, and no other row of the batch is affected."""
    await harness.add(new_job(), new_job())
    first, second = (await harness.claim(limit=2)).claims
    settled = await harness.store.complete_jobs(
        "alice", [Completion(hold=first.hold), Completion(hold=first.hold), Completion(hold=second.hold)]
    )
    assert sorted(accepted.hold for accepted in settled) == sorted([first.hold, second.hold])
    assert len(await harness.store.list_runs()) == 2


async def test_one_success_per_slot_by_constraint(harness: StoreHarness) -> None:
    """A slot that the ledger shows as ended is refused by constraint; the other rows of the batch are settled."""
    await harness.add(recurring(key="a"), new_job(), recurring(key="b"))
    claims = (await harness.claim(limit=3)).claims
    (bad,) = [claim for claim in claims if claim.key == "a"]
    await harness.backend.forge_success(bad)
    batch = [Completion(hold=claim.hold, next_run_time=START + SECOND if claim.key else None) for claim in claims]
    settled = await harness.store.complete_jobs("alice", batch)
    assert {accepted.hold for accepted in settled} == {claim.hold for claim in claims if claim is not bad}
    assert (await harness.job(bad.job_id)).locked_by == "alice"
    assert [run.fence for run in await harness.runs(bad.job_id)] == [-1]


async def test_an_error_after_some_rows_were_settled_leaves_doubt(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a batch is settled row by row and fails midway, "not applied" would be false for the first rows."""
    await harness.add(recurring(key="a"), new_job(), new_job())
    claims = sorted((await harness.claim(limit=3)).claims, key=lambda claim: claim.key == "a")
    await harness.backend.forge_success(claims[-1])
    sending = next(name for name in ("_write", "_patiently", "_ask") if hasattr(harness.store, name))
    send, sent = getattr(harness.store, sending), []

    async def breaking_off(*args: Any, **columns: Any) -> Any:
        sent.append(args)
        if len(sent) == 3:  # for the whole batch, and for one row
            raise TransientError("away")
        return await send(*args, **columns)

    monkeypatch.setattr(harness.store, sending, breaking_off)
    with pytest.raises(AmbiguousError, match="1 of 3") as caught:
        await harness.store.complete_jobs("alice", [Completion(hold=c.hold, next_run_time=c.due_at) for c in claims])
    assert isinstance(caught.value.__cause__, TransientError)
    assert len(await harness.runs(claims[0].job_id)) == 1


# Failing


async def test_failure_keeps_the_slot_and_sets_the_backoff(harness: StoreHarness) -> None:
    """Ledger row with the traceback; nominal time and slot stay; due again after the delay; the attempt counts."""
    claim = await harness.claimed(recurring())
    harness.now.advance(seconds=4)
    assert await harness.fail(claim, error="Traceback\n  …", delay=9 * SECOND)
    await assert_unlocked(harness, claim.job_id)
    view = await harness.job(claim.job_id)
    assert (view.state, view.slot_no, view.attempt, view.next_run_time) == (State.READY, 1, 1, claim.nominal)
    assert view.due_at == harness.now() + 9 * SECOND
    assert view.last_run_time is None
    (run,) = await harness.runs(claim.job_id)
    assert (run.outcome, run.error, run.worker, run.result) == (Outcome.FAILED, "Traceback\n  …", "alice", None)
    harness.now.advance(seconds=9)
    again = await harness.claim_one()
    assert (again.slot_no, again.attempt, again.fence, again.nominal) == (1, 2, 2, claim.nominal)


async def test_last_attempt_makes_it_dead(harness: StoreHarness) -> None:
    """With max_attempts = 2 the second failure is final, and the answer says so."""
    await harness.add(new_job(max_attempts=2))
    deaths = []
    for _ in range(2):
        claim = await harness.claim_one()
        failure = Failure(hold=claim.hold, error="boom", delay=timedelta(0))
        deaths += [settled.dead for settled in await harness.store.fail_jobs("alice", [failure])]
    assert deaths == [False, True]
    assert (await harness.job(claim.job_id)).state is State.DEAD


async def test_unlimited_attempts_never_die(harness: StoreHarness) -> None:
    """None means no limit."""
    await harness.add(recurring(max_attempts=None))
    for _ in range(20):
        await harness.fail(await harness.claim_one())
    (view,) = await harness.store.list_jobs()
    assert (view.state, view.attempt) == (State.READY, 20)


# Releasing


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.SNOOZED, Outcome.ABANDONED])
async def test_release_returns_the_attempt(harness: StoreHarness, outcome: Outcome) -> None:
    """Ledger row; slot and nominal time stay; the attempt is given back; without a delay it is due as before."""
    claim = await harness.claimed()
    assert await harness.release(claim, outcome=outcome, error="shutting down")
    await assert_unlocked(harness, claim.job_id)
    view = await harness.job(claim.job_id)
    assert (view.state, view.slot_no, view.attempt, view.due_at) == (State.READY, 1, 0, claim.due_at)
    (run,) = await harness.runs(claim.job_id)
    assert (run.outcome, run.error, run.attempt) == (outcome, "shutting down", 1)
    assert (await harness.claim_one()).attempt == 1


async def test_snooze_delays_the_slot(harness: StoreHarness) -> None:
    """With a delay the slot is due that much later, by the database's time; the nominal time stays."""
    claim = await harness.claimed()
    harness.now.advance(seconds=2)
    await harness.release(claim, outcome=Outcome.SNOOZED, delay=30 * SECOND)
    view = await harness.job(claim.job_id)
    assert (view.due_at, view.next_run_time) == (harness.now() + 30 * SECOND, claim.nominal)


async def test_release_without_delay_keeps_an_earlier_backoff(harness: StoreHarness) -> None:
    """The backoff of an earlier failure stays."""
    claim = await harness.claimed()
    await harness.fail(claim, delay=5 * SECOND)
    harness.now.advance(seconds=5)
    again = await harness.claim_one()
    await harness.release(again)
    assert (await harness.job(claim.job_id)).due_at == again.due_at == START + 5 * SECOND


async def test_counted_release_keeps_its_attempt(harness: StoreHarness) -> None:
    """A run that starved its own worker counts, so that its job reaches its limit; other releases do not."""
    claim = await harness.claimed(new_job(max_attempts=2))
    for counted, attempt in ((False, 0), (True, 1)):
        release = Release(hold=claim.hold, outcome=Outcome.ABANDONED, error="starved", counted=counted)
        assert await harness.store.release_jobs("alice", [release]) == [Settled(claim.hold, dead=False)]
        assert (await harness.job(claim.job_id)).attempt == attempt
        claim = await harness.claim_one()
    last = Release(hold=claim.hold, outcome=Outcome.ABANDONED, error="starved", counted=True)
    assert await harness.store.release_jobs("alice", [last]) == [Settled(claim.hold, dead=True)]
    view = await harness.job(claim.job_id)
    assert (view.state, view.attempt) == (State.DEAD, 2)
    assert [run.outcome for run in await harness.store.list_runs()] == [Outcome.ABANDONED] * 3


async def test_released_isolated_job_is_isolated_no_more(harness: StoreHarness) -> None:
    """Its last run was not lost: it may be claimed with others again."""
    claim = await harness.claimed()
    await harness.lose(claim)
    await harness.lose(await harness.claim_one())
    again = await harness.claim_one()
    assert again.isolated
    await harness.release(again)
    assert not (await harness.job(claim.job_id)).isolated


@pytest.mark.parametrize("verb", ["fail", "complete"])
async def test_settled_isolated_job_is_isolated_no_more(harness: StoreHarness, verb: str) -> None:
    """Only lost runs *in a row* isolate."""
    claim = await harness.claimed(recurring())
    await harness.lose(claim)
    await harness.lose(await harness.claim_one())
    again = await harness.claim_one()
    assert again.isolated
    if verb == "fail":
        await harness.fail(again)
    else:
        await harness.complete(again, next_run_time=harness.now() + SECOND)
    assert not (await harness.job(claim.job_id)).isolated
    harness.now.advance(minutes=10)
    await harness.lose(await harness.claim_one())
    assert not (await harness.job(claim.job_id)).isolated, "the losses are counted anew"


# Settling a lost answer


async def test_read_outcomes_settles_a_lost_answer(harness: StoreHarness) -> None:
    """The ledger says how each run ended; runs that have not ended, or do not exist, are missing."""
    await harness.add(new_job(), new_job(), new_job(), new_job())
    done, failed, released, running = (await harness.claim(limit=4)).claims
    await harness.complete(done)
    await harness.fail(failed)
    await harness.release(released, outcome=Outcome.SNOOZED)
    unknown = Hold(uuid4(), 1)
    holds = [done.hold, failed.hold, released.hold, running.hold, unknown]
    assert await harness.store.read_outcomes(holds) == {
        done.hold: Outcome.SUCCEEDED,
        failed.hold: Outcome.FAILED,
        released.hold: Outcome.SNOOZED,
    }
    assert await harness.store.read_outcomes([]) == {}


async def test_read_outcomes_distinguishes_runs_of_one_job(harness: StoreHarness) -> None:
    """The answer is about the requested run only, not about the job's others."""
    first = await harness.claimed()
    await harness.fail(first)
    second = await harness.claim_one()
    await harness.complete(second)
    assert await harness.store.read_outcomes([first.hold]) == {first.hold: Outcome.FAILED}
    assert await harness.store.read_outcomes([Hold(first.job_id, 3)]) == {}


async def test_sending_a_completion_again_changes_nothing(harness: StoreHarness) -> None:
    """The second request is not accepted, and the ledger shows that the first one was."""
    claim = await harness.claimed(recurring())
    assert await harness.complete(claim, next_run_time=START + SECOND)
    before = await harness.snapshot()
    assert not await harness.complete(claim, next_run_time=START + SECOND)
    assert await harness.snapshot() == before
    assert await harness.store.read_outcomes([claim.hold]) == {claim.hold: Outcome.SUCCEEDED}


async def test_empty_batches_do_nothing(harness: StoreHarness) -> None:
    """No rows, no answer, no error."""
    assert await harness.store.enqueue_jobs([]) == set()
    assert await harness.store.complete_jobs("alice", []) == []
    assert await harness.store.fail_jobs("alice", []) == []
    assert await harness.store.release_jobs("alice", []) == []
    assert await harness.store.read_holds("alice", []) == set()
    assert await harness.store.reclaim_jobs() == []


@pytest.mark.slow
async def test_a_thousand_at_once(harness: StoreHarness) -> None:
    """The largest batch is processed whole by every verb."""
    jobs = [new_job() for _ in range(1000)]
    await harness.add(*jobs)
    claims = (await harness.claim(limit=1000)).claims
    assert {claim.job_id for claim in claims} == {job.id for job in jobs}
    holds = [claim.hold for claim in claims]
    assert (await harness.store.heartbeat_jobs("alice", holds, alive_for=LOCK)).renewed == set(holds)
    assert await harness.store.read_holds("alice", holds) == set(holds)
    failures = [Failure(hold=hold, error="boom", delay=timedelta(0)) for hold in holds]
    assert len(await harness.store.fail_jobs("alice", failures)) == 1000
    holds = [claim.hold for claim in (await harness.claim(limit=1000)).claims]
    assert (
        len(await harness.store.release_jobs("alice", [Release(hold=hold, outcome=Outcome.RELEASED) for hold in holds]))
        == 1000
    )
    holds = [claim.hold for claim in (await harness.claim(limit=1000)).claims]
    assert len(await harness.store.complete_jobs("alice", [Completion(hold=hold) for hold in holds])) == 1000
    assert len(await harness.store.read_outcomes(holds)) == 1000
    assert await harness.store.list_jobs() == []


async def test_final_failure_makes_the_job_dead(harness: StoreHarness) -> None:
    """Whatever its attempts: a job without a limit, recurring or not, is not tried again. Others of the batch are."""
    jobs = [new_job(), new_job(), recurring(key="k")]
    await harness.add(*jobs)
    claims = {claim.job_id: claim for claim in (await harness.claim(limit=3)).claims}
    failures = [
        Failure(hold=claims[job.id].hold, error="no", delay=timedelta(0), final=job is not jobs[0]) for job in jobs
    ]
    dead = {settled.hold.job_id: settled.dead for settled in await harness.store.fail_jobs("alice", failures)}
    assert dead == {jobs[0].id: False, jobs[1].id: True, jobs[2].id: True}
    assert [(await harness.job(job.id)).state for job in jobs] == [State.READY, State.DEAD, State.DEAD]
