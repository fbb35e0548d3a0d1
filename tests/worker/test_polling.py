"""The polling loop: when it polls, which jobs it claims, and how many."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from itertools import count, pairwise

import pytest

from reltask import Context, events
from reltask.model.views import RunView
from reltask.worker.poller import Poller
from tests.worker.worker_harness import HarnessApp, WorkerHarness

CYCLE = {"reclaim_jobs", "claim_jobs", "heartbeat_jobs", "complete_jobs"}


def starts(app: HarnessApp) -> list[str]:
    return [event.task for event in app.log.of(events.RunStarted)]


def test_polling_occurs_at_configured_interval(harness: WorkerHarness) -> None:
    """An idle worker sends one claim per poll, and nothing else."""
    app = harness.app(settings={"worker.poll": "20s"})

    @app.task
    async def never() -> None: ...

    times: list[float] = []

    async def scenario() -> None:
        async with app.worker():
            app.subscribe(lambda e: times.append(harness.seconds()) if isinstance(e, events.Idle) else None)
            await asyncio.sleep(201)

    harness.run(scenario())
    assert [round(later - earlier, 6) for earlier, later in pairwise(times)] == [20.0] * 10
    assert app.faults.calls["claim_jobs"] == 11
    assert app.faults.calls["heartbeat_jobs"] == 0


def test_idle_worker_costs_one_statement_per_poll(harness: WorkerHarness) -> None:
    """200 idle workers send at most 5 statements a second in all."""
    app = harness.app()

    @app.task
    async def never() -> None: ...

    async def scenario() -> int:
        async with app.worker():
            before = app.faults.calls.total()
            await asyncio.sleep(3600)
            return app.faults.calls.total() - before

    assert harness.run(scenario()) * 200 / 3600 <= 5


def test_handles_no_available_jobs_gracefully(harness: WorkerHarness) -> None:
    """Without due jobs the worker waits, and stops when asked."""
    app = harness.app()

    async def scenario() -> None:
        async with app.worker():
            await asyncio.sleep(600)

    harness.run(scenario())
    assert app.log.of(events.DatabaseUnavailable) == []
    assert len(app.log.of(events.WorkerStopped)) == 1


def test_continues_polling_after_task_completion(harness: WorkerHarness) -> None:
    """After a success or a failure the worker claims the next job."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def odd(number: int) -> None:
        if number % 2:
            raise ValueError(number)

    async def scenario() -> list[str]:
        async with app.worker() as worker:
            for number in range(6):
                await odd.enqueue(number)
                await worker.drained()
        return await app.outcomes()

    assert sorted(harness.run(scenario())) == ["failed"] * 3 + ["succeeded"] * 3


def test_full_polling_cycle(harness: WorkerHarness) -> None:
    """Reclaim, claim, execute with a heartbeat, complete, sleep until the next slot, in this order, in one worker."""
    app = harness.app()
    began = []

    @app.task(every="10m")
    async def tick() -> None:
        began.append(harness.seconds())
        await asyncio.sleep(45)

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 2)

    harness.run(scenario())
    reported = [type(event).__name__ for event in app.log.events if not isinstance(event, events.Idle)]
    assert reported[:6] == ["WorkerStarted", "JobsClaimed", "RunStarted", "RunSucceeded", "JobsClaimed", "RunStarted"]
    cycle = [verb for verb in app.faults.sent if verb in CYCLE]
    assert cycle[:4] == ["reclaim_jobs", "claim_jobs", "heartbeat_jobs", "complete_jobs"]
    assert app.faults.calls["heartbeat_jobs"] == 2
    first, second = began
    assert (first, 600.0 <= second < 600.1) == (0.0, True)


def test_expired_locks_are_reclaimed_before_new_claims(harness: WorkerHarness) -> None:
    """Whenever a worker does both, the reclaim comes first: the claim after it takes the reclaimed job."""
    app = harness.app()

    @app.task
    async def job() -> None: ...

    async def scenario() -> None:
        await job.enqueue()
        await harness.claim_as("gone", app)
        await asyncio.sleep(121)
        app.faults.sent.clear()
        async with app.worker():
            await app.log.wait(events.RunSucceeded, fence=2)
        assert await app.outcomes() == ["lost", "succeeded"]

    harness.run(scenario())
    cycle = [verb for verb in app.faults.sent if verb in CYCLE]
    looks = cycle[: cycle.index("complete_jobs")]
    assert looks == ["reclaim_jobs", "claim_jobs"] * 2, "SQLite reclaims what it has seen expired twice"


def test_a_poll_finds_a_job_that_no_signal_announced(harness: WorkerHarness) -> None:
    """Another process enqueues, and its signal is lost: the job starts at the next poll, and not before."""
    app, other = harness.app(settings={"worker.poll": "20s"}), harness.app()
    for one in (app, other):

        @one.task(name="late")
        async def late() -> None: ...

    async def scenario() -> float:
        async with app.worker():
            await asyncio.sleep(5)
            await other.get_task("late").enqueue()
            await app.log.wait(events.RunStarted)
            return harness.seconds()

    assert harness.run(scenario()) == 20.0


def test_due_job_starts_at_its_time_in_spite_of_a_long_poll(harness: WorkerHarness) -> None:
    """A worker wakes at the due time that its last claim reported, not at the next poll."""
    app = harness.app(settings={"worker.poll": "1h"})

    @app.task
    async def later() -> None: ...

    async def scenario() -> None:
        await later.using(delay="17s").enqueue()
        async with app.worker():
            started = await app.log.wait(events.RunStarted)
            assert started.late < 0.01
            assert 17.0 <= harness.seconds() < 17.01

    harness.run(scenario())


def test_enqueue_wakes_the_workers_of_its_process(harness: WorkerHarness) -> None:
    """A job enqueued in a sleeping worker's process starts at once."""
    app = harness.app(settings={"worker.poll": "1h"})

    @app.task
    async def now() -> None: ...

    async def scenario() -> float:
        async with app.worker():
            await asyncio.sleep(100)
            await now.enqueue()
            await app.log.wait(events.RunStarted)
            return harness.seconds()

    assert harness.run(scenario()) == 100.0


def test_priorities_decide_the_order(harness: WorkerHarness) -> None:
    """0 comes before 9; equal priorities by due time."""
    app = harness.app(settings={"worker.concurrency": 1})
    order: list[int] = []

    @app.task
    async def job(number: int) -> None:
        order.append(number)

    async def scenario() -> None:
        for number, priority in enumerate([9, 5, 0, 5, 1]):
            await job.using(priority=priority).enqueue(number)
            await asyncio.sleep(0.001)
        await app.drain()

    harness.run(scenario())
    assert order == [2, 4, 1, 3, 0]


def test_concurrency_is_a_limit_per_worker(harness: WorkerHarness) -> None:
    """Never more bodies than `concurrency`, and never fewer while enough jobs are due."""
    app = harness.app(settings={"worker.concurrency": 3})
    running, seen = [0], []

    @app.task
    async def job() -> None:
        running[0] += 1
        seen.append(running[0])
        await asyncio.sleep(1)
        running[0] -= 1

    async def scenario() -> None:
        await app.enqueue_many(job.call() for _ in range(12))
        await app.drain()

    harness.run(scenario())
    assert max(seen) == 3
    assert 4.0 <= round(harness.seconds(), 3) < 4.5


def test_next_body_does_not_wait_for_the_last_outcome(harness: WorkerHarness) -> None:
    """An ended body frees its place while its outcome is being written; at most twice the places are claimed."""
    app = harness.app(settings={"worker.concurrency": 2})
    began = []

    @app.task
    async def job() -> None:
        began.append(round(harness.seconds()))

    app.faults.slow["complete_jobs"] = 10.0

    async def scenario() -> list[str]:
        await app.enqueue_many(job.call() for _ in range(8))
        await app.drain()
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"] * 8
    assert began == [0, 0, 0, 0, 10, 10, 20, 20]


def test_concurrency_is_a_limit_per_queue(harness: WorkerHarness) -> None:
    """A queue with its own limit never uses more places, and drained() still waits for all its jobs."""
    app = harness.app(settings={"worker.concurrency": 10, "worker.queue_concurrency": {"mail": 2}})
    running, seen = {"mail": 0, "default": 0}, []

    async def body(queue: str) -> None:
        running[queue] += 1
        seen.append((queue, running[queue]))
        await asyncio.sleep(1)
        running[queue] -= 1

    @app.task(queue="mail")
    async def mail() -> None:
        await body("mail")

    @app.task
    async def other() -> None:
        await body("default")

    async def scenario() -> list[str]:
        await app.enqueue_many([mail.call() for _ in range(6)] + [other.call() for _ in range(6)])
        await app.drain()
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"] * 12
    assert max(count for queue, count in seen if queue == "mail") == 2
    assert max(count for queue, count in seen if queue == "default") == 6


def test_a_worker_whose_queues_are_full_rests(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it has places left: it looks when a body has ended, and meanwhile at its polls."""
    app = harness.app(settings={"worker.queues": "mail", "worker.queue_concurrency": "mail=1"})
    tick, ticks = Poller.tick, count()

    async def counted(self: Poller) -> float | None:
        if next(ticks) > 1000:
            raise KeyboardInterrupt(f"It looks again and again after {harness.seconds()} s.")
        return await tick(self)

    monkeypatch.setattr(Poller, "tick", counted)

    @app.task(queue="mail")
    async def send() -> None:
        await asyncio.sleep(3600)

    async def scenario() -> None:
        await send.enqueue()
        await send.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 2)

    harness.run(scenario())
    assert harness.seconds() < 7201


def test_worker_serves_the_queues_that_its_tasks_name(harness: WorkerHarness) -> None:
    """Without a setting a worker serves its tasks' queues; with one, only those it names."""
    app = harness.app()
    picky = harness.app(settings={"worker.queues": ["default"]})
    for one in (app, picky):

        @one.task(name="letter", queue="mail")
        async def letter() -> None: ...

    async def scenario() -> None:
        await app.get_task("letter").enqueue()
        await picky.drain()
        assert (await app.status()).due == 1
        await app.drain()
        assert (await app.status()).due == 0

    harness.run(scenario())


def test_unknown_task_names_are_not_claimed(harness: WorkerHarness) -> None:
    """Old and new versions run side by side: each claims what it knows; the rest waits, and status says so."""
    old, new = harness.app(), harness.app()

    @old.task(name="both")
    async def both_old() -> None: ...

    @new.task(name="both")
    async def both_new() -> None: ...

    @new.task
    async def fresh() -> None: ...

    async def scenario() -> None:
        await new.enqueue_many([fresh.call(), both_new.call()])
        await old.drain()
        assert starts(old) == ["both"]
        assert (await old.status()).unknown == {"fresh": 1}
        await new.drain()
        assert starts(new) == ["fresh"]

    harness.run(scenario())


def test_alias_covers_a_renamed_task(harness: WorkerHarness) -> None:
    """Jobs stored under an old name run under the new one."""
    before, after = harness.app(), harness.app()
    ran = []

    @before.task
    async def old_name() -> None: ...

    @after.task(aliases=["old_name"])
    async def new_name() -> None:
        ran.append(True)

    async def scenario() -> None:
        await old_name.enqueue()
        await after.drain()

    harness.run(scenario())
    assert ran == [True]


def test_lock_contention_with_concurrent_workers(harness: WorkerHarness) -> None:
    """Five workers, 200 slots of 20 jobs: each slot succeeds exactly once, and every worker takes part."""
    apps = [harness.app(settings={"worker.concurrency": 2}) for _ in range(5)]
    ran: list[tuple[str, int]] = []
    for app in apps:

        @app.task(name="job")
        async def job(ctx: Context, number: int) -> None:
            ran.append((f"{number:02}", ctx.slot_no))
            await asyncio.sleep(0.5)

        for number in range(20):
            app.schedule(job.call(number), key=f"{number:02}", every="1m", align=True)

    async def scenario() -> list[RunView]:
        async with contextlib.AsyncExitStack() as workers:
            for app in apps:
                await workers.enter_async_context(app.worker())
            while len(ran) < 200:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(1)
            await asyncio.sleep(1)
        return await apps[0].ledger()

    runs = harness.run(scenario())
    slots = [(f"{number:02}", slot) for number in range(20) for slot in range(1, 11)]
    assert sorted(ran) == slots
    assert sorted((str(run.key), run.slot_no) for run in runs) == slots
    assert {run.outcome for run in runs} == {"succeeded"}
    assert all(len(starts(app)) > 0 for app in apps)


def test_workers_do_not_stampede_at_a_due_time(harness: WorkerHarness) -> None:
    """Of ten workers that wait for one recurring job, soon hardly more than one polls when it is due."""
    apps = [harness.app() for _ in range(10)]
    looks: list[tuple[float, str]] = []
    for app in apps:

        @app.task(name="job", every="10s", align=True)
        async def job() -> None: ...

        app.subscribe(lambda e: looks.append((harness.seconds(), e.worker)) if isinstance(e, events.Idle) else None)

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as running:
            for app in apps:
                await running.enter_async_context(app.worker())
            await asyncio.sleep(400)

    harness.run(scenario())
    assert sum(len(starts(app)) for app in apps) == 40
    slots = range(30, 400, 10)
    at_once = [len({worker for look, worker in looks if slot < look <= slot + 0.004}) for slot in slots]
    soon = [len({worker for look, worker in looks if slot < look <= slot + 0.1}) for slot in slots]
    assert sum(at_once) < 1.5 * len(slots)
    assert sum(soon) < 6 * len(slots), "the winner, and about four of the others"


def test_only_another_worker_makes_a_worker_hold_back(harness: WorkerHarness) -> None:
    """A database clock that runs slower than the worker's does not look like another worker: it stays punctual."""
    app, began = harness.app(), harness.now()
    app._now = lambda: began + (harness.now() - began) * 0.999

    @app.task(every="30s", align=True)
    async def job() -> None: ...

    async def scenario() -> list[RunView]:
        async with app.worker():
            await asyncio.sleep(900)
        return await app.ledger()

    late = [run.claimed_at - run.due_at for run in harness.run(scenario()) if run.claimed_at]
    assert len(late) >= 29
    assert max(late[1:]) < timedelta(milliseconds=10)


def test_drained_waits_for_what_bodies_enqueue(harness: WorkerHarness) -> None:
    """Jobs that a body enqueues are due too: `drained` waits for them."""
    app = harness.app()
    depths = []

    @app.task
    async def nest(depth: int) -> None:
        depths.append(depth)
        await asyncio.sleep(0.5)
        if depth < 4:
            await nest.enqueue(depth + 1)

    async def scenario() -> None:
        async with app.worker() as worker:
            await nest.enqueue(0)
            await worker.drained()
            assert depths == [0, 1, 2, 3, 4]
            await nest.enqueue(4)
            await worker.drained()
            assert depths[-2:] == [4, 4]

    harness.run(scenario())


def test_drained_does_not_end_during_a_claim(harness: WorkerHarness) -> None:
    """While a claim is under way it is unknown whether a job is due: `drained` waits for the answer."""
    app = harness.app()

    @app.task
    async def job() -> None: ...

    app.faults.slow["claim_jobs"] = 0.7

    async def scenario() -> list[str]:
        await job.enqueue()
        async with app.worker() as worker:
            await worker.drained()
            assert len(app.log.of(events.RunSucceeded)) == 1
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"]


def test_error_in_a_subscriber_affects_no_other(harness: WorkerHarness) -> None:
    """A subscriber that raises is logged; the worker and other subscribers continue."""
    app = harness.app()

    def broken(_: events.Event) -> None:
        raise RuntimeError("a bug in the user's metrics")

    app.subscribe(broken)

    @app.task
    async def job() -> None: ...

    async def scenario() -> list[str]:
        await job.enqueue()
        await app.drain()
        return await app.outcomes()

    assert harness.run(scenario()) == ["succeeded"]
