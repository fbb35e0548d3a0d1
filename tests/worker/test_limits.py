"""Limits in running workers: virtual time, one SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from reltask import App, ArgumentsError, Context, DeclarationError, Limit, UsageError, events
from reltask.model.job import Outcome
from reltask.testing import VirtualTime, drain, virtual_time
from reltask.worker.waking import TURN
from tests.worker.worker_harness import WorkerHarness


def run(work: Callable[[VirtualTime], object]) -> None:
    """Run a coroutine function in virtual time."""
    with virtual_time() as time:
        time.run(work(time))  # type: ignore[arg-type]


def make_app(time: VirtualTime, tmp_path: object, **settings: object) -> App:
    return App(
        f"sqlite:///{tmp_path}/limits.db",
        settings={"worker.concurrency": 20, **settings},
        clock=time.clock,
        now=time.now,
        inline=True,
    )


class Gauge:
    """How many bodies run at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.starts: list[float] = []

    async def body(self, seconds: float) -> None:
        self.starts.append(asyncio.get_running_loop().time())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now -= 1


def test_no_more_run_at_once_than_the_limit(tmp_path: object) -> None:
    """Ten jobs of a second each, three at a time, on two workers: they take four seconds."""

    async def work(time: VirtualTime) -> None:
        app, gauge = make_app(time, tmp_path), Gauge()

        @app.task(limit=Limit("smtp", running=3))
        async def send() -> None:
            await gauge.body(1)

        await app.enqueue_many(send.call() for _ in range(10))
        began = time.clock.monotonic()
        await drain(app)
        assert (gauge.most, len(gauge.starts)) == (3, 10)
        assert time.clock.monotonic() - began < 6

    run(work)


def test_each_value_has_a_limit_of_its_own(tmp_path: object) -> None:
    """One per customer at a time, and the customers side by side; `by` may be a function of some parameters."""

    async def work(time: VirtualTime) -> None:
        app, gauge = make_app(time, tmp_path), Gauge()

        @app.task(limit=(Limit("each", running=1, by=lambda customer: customer.lower()), Limit("all", running=2)))
        async def send(number: int, customer: str) -> None:  # noqa: ARG001 - its limit uses them
            await gauge.body(1)

        await app.enqueue_many(send.call(number, customer) for number in range(2) for customer in ("a", "B", "b", "c"))
        await drain(app)
        assert (gauge.most, len(gauge.starts)) == (2, 8)
        assert {key.key for key in await app.limit_keys("each")} == {"each:a", "each:b", "each:c"}

    run(work)


def test_no_more_start_than_the_rate(tmp_path: object) -> None:
    """A burst of two, then ten a second: in any window at most rate × window + burst; and nearly as many."""

    async def work(time: VirtualTime) -> None:
        app, gauge = make_app(time, tmp_path), Gauge()

        @app.task(limit=Limit("api", rate="10/s", burst=2))
        async def call() -> None:
            await gauge.body(0)

        await app.enqueue_many(call.call() for _ in range(42))
        await drain_all(app, lambda: len(gauge.starts) == 42)
        starts = gauge.starts
        for first in range(len(starts)):
            for last in range(first, len(starts)):
                assert last - first + 1 <= 10 * (starts[last] - starts[first]) + 2 + 1e-6
        assert starts[-1] - starts[0] < 40 / 10 * 1.25

    run(work)


async def drain_all(app: App, done: Callable[[], bool]) -> None:
    """Run a worker until this is true."""
    async with app.worker():
        async with asyncio.timeout(200_000):
            while not done():  # noqa: ASYNC110 - the time is virtual
                await asyncio.sleep(0.5)


def test_limited_jobs_do_not_starve_beside_others(tmp_path: object) -> None:
    """A worker with one place and an endless load of other jobs runs the limited one soon."""

    async def work(time: VirtualTime) -> None:
        app = make_app(time, tmp_path, **{"worker.concurrency": 1})
        ran: list[str] = []

        @app.task
        async def other() -> None:
            ran.append("other")
            await asyncio.sleep(1)

        @app.task(limit=Limit("smtp", running=1))
        async def send() -> None:
            ran.append("send")

        await app.enqueue_many(other.call() for _ in range(50))
        await send.enqueue()
        await drain_all(app, lambda: "send" in ran)
        assert len(ran) < 10

    run(work)


def test_ends_of_limited_jobs_are_followed_by_looks_at_limits_alone(harness: WorkerHarness) -> None:
    """Twenty jobs, one at a time: a claim of each, and few of jobs without limits, which are none."""
    app = harness.app()

    @app.task(limit=Limit("smtp", running=1))
    async def send() -> None:
        await asyncio.sleep(0.01)

    async def scenario() -> None:
        await app.enqueue_many(send.call() for _ in range(20))
        async with app.worker():
            await app.log.wait(events.RunSucceeded, count=20)
        assert app.faults.calls["claim_limited"] >= 20
        assert app.faults.calls["claim_jobs"] < 6

    harness.run(scenario())


def test_other_jobs_do_not_starve_beside_limited_ones(harness: WorkerHarness) -> None:
    """Without signals: while limited jobs end all the time, one without a limit starts at the worker's next turn."""
    app, elsewhere = harness.app(), harness.app()
    app.faults.signals = elsewhere.faults.signals = False

    @app.task(limit=Limit("smtp", running=1))
    async def send() -> None:
        await asyncio.sleep(0.01)

    ran: list[float] = []

    async def body() -> None:
        ran.append(harness.seconds())

    app.task(name="other")(body)
    other = elsewhere.task(name="other")(body)

    async def scenario() -> None:
        await app.enqueue_many(send.call() for _ in range(500))
        async with app.worker():
            await app.log.wait(events.RunSucceeded, count=20)
            added = harness.seconds()
            await other.enqueue()
            await app.log.wait(events.RunSucceeded, count=100)
        assert ran
        assert ran[0] - added < TURN

    harness.run(scenario())


@pytest.mark.parametrize("limited", ["all", "urgent", "late"])
@pytest.mark.parametrize("places", [1, 3])
def test_low_priorities_do_not_starve(tmp_path: object, places: int, limited: str) -> None:
    """Under an endless load of priority 0 a job of priority 9 gets a tenth place: of those with limits, or without."""

    async def work(time: VirtualTime) -> None:
        app = make_app(time, tmp_path, **{"worker.concurrency": places})
        ran: list[str] = []
        few = Limit("smtp", running=1)

        @app.task(priority=0, limit=few)
        async def limited_load() -> None:
            ran.append("load")
            await asyncio.sleep(1)
            await limited_load.enqueue()

        @app.task(priority=0)
        async def load() -> None:
            ran.append("load")
            await asyncio.sleep(1)
            await load.enqueue()

        async def late() -> None:
            ran.append("late")

        low = app.task(priority=9, limit=few if limited != "urgent" else None)(late)
        loads = {"all": [limited_load], "urgent": [limited_load, load], "late": [limited_load, load]}[limited]
        await app.enqueue_many(task.call() for task in loads for _ in range(2 * places))
        await low.enqueue()
        await drain_all(app, lambda: "late" in ran)
        assert len(ran) < 100

    run(work)


def test_a_suspended_function_gives_its_place_back(tmp_path: object) -> None:
    """While it sleeps for a day, the next one runs; it resumes without a token."""

    async def work(time: VirtualTime) -> None:
        app = make_app(time, tmp_path)
        ran: list[str] = []

        @app.task(limit=Limit("slow", running=1, rate="2/d", burst=2))
        async def wait(ctx: Context, name: str) -> None:
            await ctx.sleep("pause", "1h")
            ran.append(name)

        await wait.enqueue("a")
        await wait.enqueue("b")
        await drain_all(app, lambda: len(ran) == 2)
        runs = await app.runs()
        assert sorted(run.outcome for run in runs) == sorted([Outcome.SUSPENDED] * 2 + [Outcome.SUCCEEDED] * 2)
        assert (await app.limits())[0].in_use == 0

    run(work)


def test_a_change_at_run_time_stays_until_the_code_changes(tmp_path: object) -> None:
    """As for schedules: a worker of the same code does not undo it, one of other code does."""

    async def work(time: VirtualTime) -> None:
        def app_with(running: int) -> App:
            app = make_app(time, tmp_path)

            @app.task(limit=Limit("smtp", running=running))
            async def send() -> None: ...

            return app

        for running, expected in ((3, 3), (3, 7), (4, 4)):
            app = app_with(running)
            async with app.worker():
                assert [limit.running for limit in await app.limits()] == [expected]
                await app.change_limit("smtp", running=7)
        with pytest.raises(UsageError, match="smtp"):
            await app.change_limit("stmp", running=1)
        with pytest.raises(UsageError, match="rate"):
            await app.change_limit("smtp", rate="many")

    run(work)


def test_with_a_codec_keys_tell_nothing(tmp_path: object) -> None:
    """The value is hashed by the codec's key; the arguments of such a job are decoded as those of any other."""

    class Reversed:
        hash_key = b"0123456789abcdef0123456789abcdef"

        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[::-1]

    async def work(time: VirtualTime) -> None:
        app = App(f"sqlite:///{tmp_path}/codec.db", clock=time.clock, now=time.now, inline=True, codec=Reversed())
        seen: list[str] = []

        @app.task(limit=Limit("each", running=1, by="customer"))
        async def send(customer: str) -> None:
            seen.append(customer)

        await send.enqueue("ada")
        await drain(app)
        (key,) = await app.limit_keys("each")
        assert seen == ["ada"]
        assert key.key.startswith("each:#")
        assert "ada" not in key.key

    run(work)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (lambda: Limit("smtp"), "limits nothing"),
        (lambda: Limit("smtp", running=0), "running=0"),
        (lambda: Limit("smtp", rate="100"), "rate"),
        (lambda: Limit("smtp", rate="0/s"), "rate"),
        (lambda: Limit("smtp", running=1, burst=2), "burst"),
        (lambda: Limit("a:b", running=1), "name"),
        (lambda: Limit("smtp", running=1, by=3), "by"),  # type: ignore[arg-type]
    ],
)
def test_a_limit_is_checked_when_it_is_made(limit: Callable[[], Limit], message: str) -> None:
    """The error names what is wrong."""
    with pytest.raises(DeclarationError, match=message):
        limit()


async def asynchronous(customer: int) -> int:
    return customer


def test_a_limit_is_checked_against_its_task() -> None:
    """Unknown parameters, two limits of one name, and one name for two different limits."""
    app = App("sqlite:///unused.db")

    def task(customer: int) -> None: ...

    with pytest.raises(DeclarationError, match="custommer"):
        app.task(limit=Limit(running=1, by="custommer"))(task)
    for by in (int, lambda *customer: customer, lambda customer, /: customer, asynchronous):
        with pytest.raises(DeclarationError, match="by=lambda customer: "):
            app.task(limit=Limit("each", running=1, by=by))(task)
    with pytest.raises(DeclarationError, match="two of its limits"):
        app.task(limit=(Limit(running=1), Limit(running=2)))(task)
    with pytest.raises(DeclarationError, match="not a limit"):
        app.task(limit=3)(task)  # type: ignore[call-overload]
    app.task(limit=Limit("smtp", running=1), name="one")(task)
    with pytest.raises(DeclarationError, match="differs"):
        app.task(limit=Limit("smtp", running=2), name="two")(task)


def test_a_value_that_has_no_key_names_the_limit(tmp_path: object) -> None:
    """`by` is called for each job: what it answers has to be a value that JSON has."""

    async def work(time: VirtualTime) -> None:
        app = make_app(time, tmp_path)

        @app.task(limit=Limit("each", running=1, by=lambda customer: object()))  # noqa: ARG005 - its answer is wrong
        async def send(customer: int) -> None: ...

        with pytest.raises(ArgumentsError, match=r"'each'.* object"):
            await send.enqueue(7)

    run(work)


def test_a_change_is_checked(tmp_path: object) -> None:
    """As a declaration is; and one that changes nothing is a mistake. So are the keys of no limit."""

    async def work(time: VirtualTime) -> None:
        app = make_app(time, tmp_path)

        @app.task(limit=(Limit("smtp", running=3), Limit("api", rate="5/s")))
        async def send() -> None: ...

        async with app.worker():
            wrong: list[tuple[dict[str, Any], str]] = [
                ({}, "Nothing is to be changed"),
                ({"burst": 4}, "burst without rate"),
                ({"rate": None, "burst": 4}, "burst without rate"),
                ({"running": -1}, "running=-1"),
                ({"running": "3"}, "running='3'"),
                ({"running": False}, "running=False"),
                ({"rate": "many"}, "rate"),
            ]
            for numbers, message in wrong:
                with pytest.raises(UsageError, match=message):
                    await app.change_limit("smtp", **numbers)
            with pytest.raises(UsageError, match=r"no limit 'smpt'.*api, smtp"):
                await app.limit_keys("smpt")
            assert await app.limit_keys("smtp") == []
            await app.change_limit("api", rate=None)
            await app.change_limit("smtp", running=0)
            assert [(limit.running, limit.rate, limit.burst) for limit in await app.limits()] == [
                (None, None, None),
                (0, None, None),
            ]

    run(work)


def test_the_default_burst_is_what_a_second_brings() -> None:
    """And at least one."""
    assert [Limit("x", rate=rate).burst for rate in ("100/s", "100/m", "1/d", "500/100ms")] == [100, 2, 1, 5000]
    assert timedelta(minutes=1) == Limit("x", rate="5/m").rate.period  # type: ignore[union-attr]
