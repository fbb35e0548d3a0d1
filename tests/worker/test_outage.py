"""A database that is away, and lost answers: workers wait, outcomes are kept, nothing is done twice."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from reltask import Context, Snooze, events
from reltask.errors import AmbiguousError, PermanentError, TransientError
from reltask.model.job import State
from tests.worker.worker_harness import WorkerHarness

ENDS: dict[str, type[events.RunEvent]] = {
    "succeeded": events.RunSucceeded,
    "failed": events.RunFailed,
    "snoozed": events.RunEnded,
}


def away() -> TransientError:
    return TransientError("the database is away")


def test_worker_survives_an_outage(harness: WorkerHarness) -> None:
    """During an outage the worker reports it, retries, and continues when the database is back."""
    app = harness.app(settings={"worker.poll": "5s"})

    @app.task(every="1m")
    async def tick() -> None: ...

    async def scenario() -> list[str]:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 2)
            app.faults.error = away
            await asyncio.sleep(300)
            app.faults.error = None
            back = await app.log.wait(events.DatabaseBack)
            assert 290 < back.seconds < 320
            await app.log.wait(events.RunSucceeded, 5)
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"] * 5
    assert len(app.log.of(events.DatabaseUnavailable)) > 5


def test_outcome_is_retried_until_it_is_written(harness: WorkerHarness) -> None:
    """A body that has ended is not run again because of an outage: its completion is sent until it is written."""
    app = harness.app()
    ran = []

    @app.task
    async def job() -> str:
        ran.append(harness.seconds())
        app.faults.error = away
        asyncio.get_running_loop().call_later(60, setattr, app.faults, "error", None)
        return "kept"

    async def scenario() -> list[str | None]:
        async with app.worker():
            await job.enqueue()
            await app.log.wait(events.RunSucceeded)
        return [run.result for run in await app.runs()]

    assert harness.run(scenario()) == ['"kept"']
    assert len(ran) == 1
    assert harness.seconds() > 60.0


def test_completion_after_the_deadline_is_still_written(harness: WorkerHarness) -> None:
    """The deadline stops bodies, not outcomes: without a reclaim, a completion after the lock timeout counts."""
    app = harness.app()

    @app.task
    async def job() -> None:
        app.faults.error = away
        asyncio.get_running_loop().call_later(600, setattr, app.faults, "error", None)

    async def scenario() -> list[str]:
        async with app.worker():
            await job.enqueue()
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"]
    assert app.log.of(events.RunAbandoned) == []


def test_late_completion_is_refused_after_a_takeover(harness: WorkerHarness) -> None:
    """After one worker's outage its outcome meets a newer fence: it is refused, and the new owner's state stays."""
    cut, healthy = harness.app(), harness.app()

    @cut.task(name="job")
    async def old() -> str:
        cut.faults.error = away
        return "old"

    @healthy.task(name="job")
    async def new() -> str:
        return "new"

    async def scenario() -> list[tuple[str, str | None]]:
        async with cut.worker(), healthy.worker():
            await old.enqueue()
            await healthy.log.wait(events.RunSucceeded)
            cut.faults.error = None
            await cut.log.wait(events.LateWriteRefused)
        return [(run.outcome, run.result) for run in await healthy.ledger()]

    assert harness.run(scenario()) == [("lost", None), ("succeeded", '"new"')]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("outcome", ["succeeded", "failed", "snoozed"])
def test_lost_answer_to_an_outcome_is_settled_by_the_ledger(harness: WorkerHarness, outcome: str, times: int) -> None:
    """The outcome was written, the answer was lost: sent again it matches nothing, and the ledger shows it."""
    app = harness.app()
    verb = {"succeeded": "complete_jobs", "failed": "fail_jobs", "snoozed": "release_jobs"}[outcome]
    app.faults.losing[verb] = times

    @app.task(max_attempts=2, backoff="1h")
    async def job() -> None:
        if outcome == "failed":
            raise ValueError("boom")
        if outcome == "snoozed":
            raise Snooze("1h")

    async def scenario() -> list[str]:
        async with app.worker():
            await job.enqueue()
            await app.log.wait(events.DatabaseUnavailable, verb="settle")
            await app.log.wait(ENDS[outcome])
        return await app.outcomes()

    assert harness.run(scenario()) == [outcome]
    assert app.log.of(events.LateWriteRefused) == []


def test_row_of_a_lost_claim_is_released(harness: WorkerHarness) -> None:
    """The claim was made, its answer was lost: the heartbeat finds the row by its token, and releases it untried."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def job(ctx: Context) -> int:
        return ctx.fence

    app.faults.losing["claim_jobs"] = 1

    async def scenario() -> None:
        async with app.worker():
            await job.enqueue()
            stray = await app.log.wait(events.StrayReleased)
            assert stray.fence == 1
            await app.log.wait(events.RunSucceeded)
        released, succeeded = await app.ledger()
        assert (released.outcome, released.error) == ("released", "the answer to the claim was lost")
        assert (succeeded.outcome, succeeded.attempt, succeeded.result) == ("succeeded", 1, "2")
        assert harness.seconds() < 5.0, "long before its lock would have ended"

    harness.run(scenario())


def test_released_row_of_a_lost_claim_is_signalled(harness: WorkerHarness) -> None:
    """It is due, and its worker may have no place for it: others need not wait for their polls."""
    app = harness.app()

    @app.task
    async def job() -> None: ...

    app.faults.losing["claim_jobs"] = 1

    async def scenario() -> None:
        async with app.worker():
            await job.enqueue()
            await app.log.wait(events.RunSucceeded)
        sent = app.faults.sent
        assert "signal" in sent[sent.index("release_jobs") : sent.index("complete_jobs")]

    harness.run(scenario())


def test_claim_applied_late_is_found_too(harness: WorkerHarness) -> None:
    """A claim that the client gave up may be applied afterwards: the search goes on for a lock timeout."""
    app = harness.app()

    @app.task
    async def job() -> None: ...

    async def scenario() -> None:
        async with app.worker() as worker:
            app.faults.error, app.faults.verbs = lambda: AmbiguousError("lost"), {"claim_jobs"}
            await job.enqueue()
            await app.log.wait(events.DatabaseUnavailable, verb="claim")
            lost = app.faults.claims[-1]
            await asyncio.sleep(40)
            await harness.claim_as(worker.id, app, token=lost.token)
            app.faults.error = None
            await app.log.wait(events.StrayReleased)
            await app.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert harness.seconds() < 130.0


def test_row_of_a_lost_claim_is_found_after_a_long_outage(harness: WorkerHarness) -> None:
    """Searches without an answer do not count: the row is released long before its own lock ends."""
    app = harness.app()

    @app.task(lock_timeout="2h")
    async def job() -> None: ...

    async def scenario() -> None:
        app.faults.losing["claim_jobs"] = 1
        app.faults.error, app.faults.verbs = away, {"heartbeat_jobs"}
        await job.enqueue()
        async with app.worker():
            await asyncio.sleep(600)
            app.faults.error = None
            await app.log.wait(events.StrayReleased)
            await app.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert harness.seconds() < 700.0


def test_lost_answer_to_enqueue_inserts_once(harness: WorkerHarness) -> None:
    """The client's id is sent again: the job exists once, and the caller gets it as created."""
    app = harness.app()

    @app.task
    async def job() -> None: ...

    app.faults.losing["enqueue_jobs"] = 2

    async def scenario() -> None:
        one = await job.enqueue()
        assert one.created
        app.faults.losing["enqueue_jobs"] = 1
        many = await app.enqueue_many(job.call() for _ in range(3))
        assert all(job.created for job in many)
        assert {view.id for view in await app.jobs()} == {one.id, *(job.id for job in many)}

    harness.run(scenario())


def test_refused_outcome_does_not_affect_others(harness: WorkerHarness) -> None:
    """An outcome that the database refuses for good is a failure; the others of its batch are written."""
    app = harness.app()

    @app.task
    async def job(number: int) -> int:
        return number

    class Picky:
        """Refuses a batch with the result 3, as a constraint or a broken value would."""

        def __init__(self) -> None:
            self.refused = 0

        def check(self, completions: list[object]) -> None:
            if any(getattr(completion, "result", None) == "3" for completion in completions):
                self.refused += 1
                raise PermanentError("no threes")

    picky = Picky()
    make = app._make_store

    def making(url: str | None = None, *, inline: bool = False) -> object:
        store = make(url, inline=inline)
        complete = store.complete_jobs

        async def complete_jobs(worker: str, completions: list[object]) -> object:
            picky.check(completions)
            return await complete(worker, completions)  # type: ignore[arg-type]

        store.complete_jobs = complete_jobs  # type: ignore[method-assign,assignment]
        return store

    app._make_store = making  # type: ignore[method-assign,assignment]

    async def scenario() -> None:
        await app.enqueue_many(job.call(number) for number in range(6))
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 5)
            await app.log.wait(events.LateWriteRefused)
        runs = await app.runs()
        assert sorted(run.result or "" for run in runs if run.outcome == "succeeded") == list("01245")
        (failed,) = [run for run in runs if run.outcome == "failed"]
        assert "The outcome could not be written: no threes" in str(failed.error)

    harness.run(scenario())
    assert picky.refused >= 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_doubt_outlives_a_refusal(harness: WorkerHarness, jobs: int) -> None:
    """Once an answer was lost the ledger is read, even if the same outcomes are refused when sent again."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def job() -> None:
        raise ValueError

    def refuse_once() -> Exception:
        app.faults.error = None
        return PermanentError("the database cannot take this")

    def refuse_next(event: events.Event) -> None:
        if isinstance(event, events.DatabaseUnavailable) and app.faults.calls["fail_jobs"] == 1:
            app.faults.error, app.faults.verbs = refuse_once, {"fail_jobs"}

    async def scenario() -> list[str]:
        app.faults.losing["fail_jobs"] = 1
        app.subscribe(refuse_next)
        await app.enqueue_many(job.call() for _ in range(jobs))
        await app.drain()
        return await app.outcomes()

    assert harness.run(scenario()) == ["failed"] * jobs
    assert len(app.log.of(events.RunFailed)) == jobs
    assert app.log.of(events.LateWriteRefused) == []


def test_what_is_given_up_one_by_one_is_not_refused(harness: WorkerHarness) -> None:
    """A worker that stops in an outage gives up what it could not write, in a batch or alone: it stays unsettled."""
    app = harness.app()
    errors = itertools.chain([PermanentError("the database cannot take this")], itertools.repeat(away()))

    @app.task
    async def job() -> None: ...

    async def scenario() -> None:
        app.faults.error, app.faults.verbs = lambda: next(errors), {"complete_jobs", "read_outcomes"}
        await app.enqueue_many(job.call() for _ in range(2))
        async with app.worker():
            await app.log.wait(events.DatabaseUnavailable)

    harness.run(scenario())
    assert app.log.of(events.LateWriteRefused) == []
    assert app.log.of(events.WorkerStopped)[0].unsettled == 2


def test_outcome_that_no_driver_accepts_frees_its_place(
    harness: WorkerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in every settlement of a run costs that run: its lock expires, and its place is free."""
    app = harness.app(settings={"worker.concurrency": 1})

    @app.task
    async def job() -> None: ...

    async def scenario() -> list[str]:
        async with app.worker():
            app.faults.verbs = {"complete_jobs", "fail_jobs"}
            app.faults.error = lambda: KeyError("a bug in a driver")
            await job.enqueue()
            await app.log.wait(events.LateWriteRefused)
            app.faults.error = None
            await job.enqueue()
            await app.log.wait(events.RunSucceeded, 2)
        return sorted(await app.outcomes())

    assert harness.run(scenario()) == ["lost", "succeeded", "succeeded"]
    assert "given up" not in caplog.text


def test_unexpected_error_in_the_worker_is_survived(harness: WorkerHarness, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error in any of a worker's calls is logged; poller, settler and heartbeats continue."""
    app = harness.app()

    @app.task
    async def job() -> None:
        await asyncio.sleep(100)

    async def scenario() -> list[str]:
        async with app.worker():
            app.faults.error = lambda: KeyError("a bug in a driver")
            await asyncio.sleep(20)
            app.faults.error = None
            await job.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.error = lambda: KeyError("a bug in a driver")
            await asyncio.sleep(50)
            app.faults.error = None
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"]
    assert "Unexpected error in Poller" in caplog.text


def test_outage_makes_no_dead_letter(harness: WorkerHarness) -> None:
    """An outage costs no attempts: a job that was abandoned because of it still has all of them."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def job() -> None:
        await asyncio.sleep(100)

    async def scenario() -> None:
        async with app.worker():
            await job.enqueue()
            await app.log.wait(events.RunStarted)
            app.faults.error = away
            await app.log.wait(events.RunAbandoned)
            app.faults.error = None
            await app.log.wait(events.RunSucceeded)
        assert await app.jobs(state=State.DEAD) == []
        assert await app.outcomes() == ["abandoned", "succeeded"]

    harness.run(scenario())
