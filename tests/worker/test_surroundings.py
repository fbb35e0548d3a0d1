"""Headers, context variables and middleware: what surrounds a run."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from reltask import (
    Again,
    App,
    ArgumentsError,
    BaseContext,
    ConfigurationError,
    Context,
    Retry,
    Signal,
    Snooze,
    SyncContext,
    events,
)
from tests.worker import surrounded_tasks
from tests.worker.surrounded_tasks import refuse, request_id, tenant, use_tenant
from tests.worker.worker_harness import HarnessApp, WorkerHarness

go: Signal[str] = Signal("go", str)


def app_of(harness: WorkerHarness, **options: Any) -> HarnessApp:
    return harness.app(contextvars=[request_id], middleware=[use_tenant], **options)


async def result_of(app: HarnessApp) -> str | None:
    (run,) = await app.runs()
    return run.result


def test_headers_reach_the_body(harness: WorkerHarness) -> None:
    """`using(headers=…)` may be said twice: the second comes on top; None takes one away."""
    app = harness.app()
    seen: list[Any] = []

    @app.task
    async def look(ctx: Context) -> None:
        seen.append(dict(ctx.headers))

    async def scenario() -> None:
        first = look.using(headers={"tenant": "a", "trace": {"id": [1, 2]}})
        await first.enqueue()
        await first.using(headers={"tenant": "b"}, priority=9).enqueue()
        await first.using(headers={"trace": None}, priority=9).enqueue()
        await look.using(priority=9).enqueue()
        await app.drain()

    harness.run(scenario())
    assert seen == [
        {"tenant": "a", "trace": {"id": [1, 2]}},
        {"tenant": "b", "trace": {"id": [1, 2]}},
        {"tenant": "a"},
        {},
    ]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_variable_set_around_the_enqueue_is_seen_in_the_body(live: WorkerHarness, kind: str) -> None:
    """Also what middleware sets; and neither is left behind for the next run."""
    app = app_of(live)

    @app.task
    async def in_task() -> list[str]:
        return [request_id.get(), tenant.get()]

    @app.task
    def in_thread() -> list[str]:
        return [request_id.get(), tenant.get()]

    task: Any = in_task if kind == "async" else in_thread
    token = request_id.set("r-1")
    await task.using(headers={"tenant": "acme"}).enqueue()
    request_id.reset(token)
    await task.using(headers={"tenant": "other"}).enqueue()
    await app.drain()
    results = sorted(run.result or "" for run in await app.runs())
    assert results == ['["none","other"]', '["r-1","acme"]']
    assert tenant.get() == "none"


async def test_a_child_process_sees_them_too(live: WorkerHarness) -> None:
    """Middleware runs in the child, with the child's own context."""
    app = app_of(live)
    seen = app.task(isolation="process")(surrounded_tasks.seen_in_child.function)
    token = request_id.set("r-2")
    await seen.using(headers={"tenant": "acme"}).enqueue()
    request_id.reset(token)
    await app.drain()
    assert await result_of(app) == '["r-2","acme"]'


async def test_a_child_process_has_the_headers(live: WorkerHarness) -> None:
    """`ctx.headers` of a ProcessContext."""
    app = app_of(live)
    headers = app.task(isolation="process")(surrounded_tasks.headers_in_child.function)
    await headers.using(headers={"tenant": "acme"}).enqueue()
    await app.drain()
    assert await result_of(app) == '{"tenant":"acme"}'


async def test_a_child_that_cannot_find_the_middleware_runs_nothing(live: WorkerHarness) -> None:
    """A function that is not decorated in its module has no app there: the run fails and says why."""
    app = app_of(live)
    bare = app.task(isolation="process", max_attempts=1)(surrounded_tasks.bare)
    await bare.enqueue()
    await app.drain()
    (run,) = await app.runs()
    assert run.outcome == "failed"
    assert "without its app" in (run.error or "")


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_middleware_that_raises_fails_the_run_and_nothing_else(live: WorkerHarness, kind: str) -> None:
    """The body does not run; the worker goes on."""
    app = live.app(middleware=[refuse])
    ran: list[str] = []

    @app.task(max_attempts=1)
    async def in_task() -> None:
        ran.append("task")

    @app.task(max_attempts=1)
    def in_thread() -> None:
        ran.append("thread")

    in_child = app.task(isolation="process", max_attempts=1)(surrounded_tasks.refused_in_child.function)
    task: Any = {"async": in_task, "thread": in_thread, "process": in_child}[kind]
    other = live.app()

    @other.task
    async def plain() -> None:
        ran.append("plain")

    await task.enqueue()
    await app.drain()
    await plain.enqueue()
    await other.drain()
    (run,) = await app.runs(task=task.name)
    assert run.outcome == "failed"
    assert "ValueError: no tenant for" in (run.error or "")
    assert ran == ["plain"]


def test_an_error_on_the_way_out_is_the_runs(harness: WorkerHarness) -> None:
    """What middleware raises after the body replaces its success; what it raises instead of an error counts."""

    @contextmanager
    def translate(_: BaseContext) -> Iterator[None]:
        try:
            yield
        except KeyError:
            raise Snooze("5m") from None
        raise Retry("not good enough", delay="1m")

    app = harness.app(middleware=[translate])

    @app.task
    async def returns() -> int:
        return 1

    @app.task
    async def raises() -> None:
        raise KeyError

    async def scenario() -> None:
        await returns.enqueue()
        await raises.enqueue()
        await app.drain()
        assert await app.outcomes("returns") == ["failed"]
        assert await app.outcomes("raises") == ["snoozed"]

    harness.run(scenario())


def test_middleware_is_entered_in_order_and_left_in_reverse(harness: WorkerHarness) -> None:
    """The first is outermost; it may be a class; it sees the same context as the body."""
    order: list[Any] = []

    def named(name: str) -> Callable[[BaseContext], AbstractContextManager[None]]:
        @contextmanager
        def around(ctx: BaseContext) -> Iterator[None]:
            order.append((name, ctx.task, ctx.attempt))
            yield
            order.append(name)

        return around

    class Inner:
        def __init__(self, ctx: BaseContext) -> None:
            self.ctx = ctx

        def __enter__(self) -> None:
            order.append(self.ctx)

        def __exit__(self, *_: object) -> None:
            order.append("class")

    app = harness.app(middleware=[named("outer"), named("inner"), Inner])

    @app.task
    async def body(ctx: Context) -> None:
        order.append(ctx)

    async def scenario() -> None:
        await body.enqueue()
        await app.drain()

    harness.run(scenario())
    assert order[:2] == [("outer", "body", 1), ("inner", "body", 1)]
    assert order[2] is order[3]
    assert order[4:] == ["class", "inner", "outer"]


def test_what_is_no_context_manager_fails_the_run(harness: WorkerHarness) -> None:
    """What a function returns is seen when it is called: the error has a remedy."""

    def wrong(_: BaseContext) -> Any:
        return 3

    app = harness.app(middleware=[wrong])

    @app.task(max_attempts=1)
    async def body() -> None: ...

    async def scenario() -> str | None:
        await body.enqueue()
        await app.drain()
        return (await app.ledger())[0].error

    error = harness.run(scenario()) or ""
    assert "Middleware wrong returned" in error
    assert "must not be async" in error


async def test_slow_middleware_delays_no_heartbeat(live: WorkerHarness) -> None:
    """It may block the worker's loop: heartbeats come from another thread."""
    beaten = threading.Event()

    @contextmanager
    def slow(_: BaseContext) -> Iterator[None]:
        deadline = time.monotonic() + 10
        while app.faults.calls["heartbeat_jobs"] < 3 and time.monotonic() < deadline:
            beaten.wait(0.01)
        yield

    app = live.app(middleware=[slow], settings={"worker.lock_timeout": "1s"})

    @app.task
    async def body() -> int:
        return app.faults.calls["heartbeat_jobs"]

    await body.enqueue()
    await app.drain()
    (run,) = await app.runs()
    assert run.outcome == "succeeded"
    assert int(run.result or 0) >= 3
    assert not app.log.of(events.HeartbeatFailed)


def test_jobs_enqueued_in_a_run_inherit_its_headers(harness: WorkerHarness) -> None:
    """Their own come on top, and None leaves one out; context variables follow as they are in the body."""
    app = harness.app(contextvars=[request_id])
    seen: dict[str, Any] = {}

    @app.task
    async def child(ctx: Context, name: str) -> None:
        seen[name] = (dict(ctx.headers), request_id.get())

    @app.task
    async def parent(ctx: Context) -> None:
        await child.enqueue("plain")
        await child.using(headers={"tenant": "b", "trace": None}).enqueue("own")
        await ctx.run("waited for", child.call("run"))
        await ctx.start("not waited for", child.call("start"))
        async with ctx.transaction():
            request_id.set("changed")
            await child.enqueue("transaction")

    async def scenario() -> None:
        token = request_id.set("first")
        await parent.using(headers={"tenant": "a", "trace": "t"}).enqueue()
        request_id.reset(token)
        async with app.worker() as worker:
            await app.log.wait(events.RunSucceeded, task="parent")
            await worker.drained()

    harness.run(scenario())
    inherited = {"tenant": "a", "trace": "t"}
    assert seen == {
        "plain": (inherited, "first"),
        "own": ({"tenant": "b"}, "first"),
        "run": (inherited, "first"),
        "start": (inherited, "first"),
        "transaction": (inherited, "changed"),
    }


async def test_a_thread_that_enqueues_hands_its_headers_on(live: WorkerHarness) -> None:
    """A `def` body is a run as well."""
    app = live.app()
    seen: list[str] = []

    @app.task
    def child(ctx: SyncContext) -> None:
        seen.append(ctx.headers["tenant"])

    @app.task
    def parent() -> None:
        child.enqueue_sync()

    await parent.using(headers={"tenant": "a"}).enqueue()
    await app.drain()
    await app.drain()
    assert seen == ["a"]


def test_again_and_retries_keep_the_headers(harness: WorkerHarness) -> None:
    """They belong to the job."""
    app = harness.app(contextvars=[request_id])
    seen: list[Any] = []

    @app.task
    async def poll(ctx: Context, cursor: int) -> None:
        seen.append((cursor, ctx.headers["tenant"], request_id.get()))
        if ctx.fence == 1:
            raise Retry("once more", delay="1s")
        if cursor < 2:
            request_id.set("of this run alone")
            raise Again(poll.call(cursor + 1))

    async def scenario() -> None:
        request_id.set("r")
        await poll.using(headers={"tenant": "a"}).enqueue(1)
        async with app.worker() as worker:
            await app.log.wait(events.RunSucceeded, count=2)
            await worker.drained()

    harness.run(scenario())
    assert seen == [(1, "a", "r"), (1, "a", "r"), (2, "a", "r")]


def test_a_suspended_function_is_surrounded_at_each_resume(harness: WorkerHarness) -> None:
    """Middleware is around each run: it is left when the function is suspended, and entered again."""
    order: list[str] = []

    @contextmanager
    def around(_: BaseContext) -> Iterator[None]:
        order.append("in")
        try:
            yield
        finally:
            order.append("out")

    app = harness.app(middleware=[around], contextvars=[request_id])

    @app.task
    async def wait(ctx: Context) -> str:
        await ctx.sleep("a day", "1d")
        return request_id.get()

    async def scenario() -> str | None:
        token = request_id.set("r")
        await wait.enqueue()
        request_id.reset(token)
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        return (await app.ledger())[-1].result

    assert harness.run(scenario()) == '"r"'
    assert order == ["in", "out", "in", "out"]


def test_a_declared_schedule_has_headers(harness: WorkerHarness) -> None:
    """`app.schedule(task.using(headers=…).call(), …)`."""
    app = harness.app()
    seen: list[Any] = []

    @app.task
    async def report(ctx: Context) -> None:
        seen.append(ctx.headers["tenant"])

    app.schedule(report.using(headers={"tenant": "a"}).call(), key="a", every="1h")

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, count=2)

    harness.run(scenario())
    assert seen == ["a", "a"]


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"a": object()}, "holds object"),
        ({"": 1}, "name of a header"),
        ({"~context": {}}, "does not start with ~"),
        ({"line\nbreak": 1}, "printable"),
        ({1: "a"}, "name of a header"),
        ("tenant", "headers= is str"),
        ({"a": float("nan")}, "nan cannot be stored"),
    ],
)
def test_headers_that_could_not_be_read_again_are_refused(harness: WorkerHarness, headers: Any, why: str) -> None:
    """When they are given, not in a worker; their values are not quoted."""
    app = harness.app()

    @app.task
    async def body() -> None: ...

    with pytest.raises(ArgumentsError, match=why):
        body.using(headers=headers).call()


def test_headers_have_a_limit(harness: WorkerHarness) -> None:
    """`limits.headers` counts bytes, with the context variables."""
    app = harness.app(contextvars=[request_id], settings={"limits.headers": 100})

    @app.task
    async def body() -> None: ...

    body.using(headers={"a": "x" * 80}).call()
    with pytest.raises(ArgumentsError, match=r"more than the limit of 100.*limits\.headers"):
        body.using(headers={"a": "x" * 100}).call()
    token = request_id.set("x" * 100)
    with pytest.raises(ArgumentsError, match="more than the limit"):
        body.call()
    request_id.reset(token)


def test_a_variable_that_cannot_be_carried_is_named(harness: WorkerHarness) -> None:
    """Its type, not its value."""
    variable: ContextVar[Any] = ContextVar("session")
    app = harness.app(contextvars=[variable])

    @app.task
    async def body() -> None: ...

    token = variable.set(object())
    with pytest.raises(ArgumentsError, match="context variable 'session' holds object"):
        body.call()
    variable.reset(token)


def undecorated(_: BaseContext) -> Iterator[None]:
    yield


async def asynchronous(_: BaseContext) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    "options",
    [
        {"contextvars": ["request_id"]},
        {"contextvars": [request_id, ContextVar("request_id")]},
        {"contextvars": request_id},
        {"middleware": [1]},
        {"middleware": contextmanager(undecorated)},
        {"middleware": [undecorated]},
        {"middleware": [asynccontextmanager(asynchronous)]},
        {"middleware": [asynchronous]},
    ],
)
def test_what_an_app_cannot_carry_is_refused_at_once(options: dict[str, Any]) -> None:
    """When the app is made."""
    with pytest.raises(ConfigurationError):
        App("sqlite:///:memory:", **options)
