"""What users write: mypy and pyright accept every line of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from reltask import App, Call, Context, Job, JobView, ProcessContext, RunView, Signal, StatusView, StepView, SyncContext

app = App("sqlite:///reltask.db")


@dataclass
class Decision:
    ok: bool


decision = Signal("decision", Decision)
lengths = Signal("lengths", list[int])


@app.task
async def greet(name: str, *, times: int = 1) -> str:
    return name * times


@app.task(queue="mail", max_attempts=5, timeout="30s")
async def send(ctx: Context, user_id: int, subject: str = "Welcome") -> None:
    ctx.logger.info("to %s: %s", user_id, subject)


@app.task
def thumbnail(ctx: SyncContext, path: str) -> bytes:
    ctx.progress({"path": path})
    return b""


@app.task(isolation="process")
def crunch(ctx: ProcessContext, rows: list[int]) -> int:
    ctx.check()
    return sum(rows)


@app.task(every="10m")
async def refresh() -> None: ...


@app.task(cron="0 9 * * mon-fri", timezone="Europe/Berlin", missed="skip")
def report(tenant: str = "all") -> None: ...


async def produce(ctx: Context) -> None:
    assert_type(await greet.enqueue("Ada"), Job[str])
    await greet.enqueue("Ada", times=2)
    await greet.enqueue(name="Ada")
    await send.enqueue(42)
    await send.enqueue(42, subject="Hello")
    await send.using(delay="15m", key="welcome-42", priority=0).enqueue(42, "Hello")
    await send.using(at=datetime(2030, 1, 1, tzinfo=UTC), lock_timeout=timedelta(minutes=5)).enqueue(user_id=42)
    await thumbnail.enqueue("a.png")
    await crunch.enqueue([1, 2, 3])
    await refresh.enqueue()
    assert_type(await app.enqueue_many(greet.call(name) for name in "abc"), list[Job[str]])
    job = await refresh.enqueue()
    assert_type(job.id, UUID)
    assert_type(await job.view(), JobView | None)
    assert_type(await job.runs(), list[RunView])
    assert_type(await app.status(), StatusView)
    assert_type(await greet("Ada", times=2), str)
    await send(ctx, 42)


async def handle() -> None:
    assert_type(await send.enqueue(42), Job[None])
    assert_type(await (await greet.using(delay="1s").enqueue("Ada")).result(timeout="30s"), str)
    assert_type(await (await thumbnail.enqueue("a.png")).result(), bytes)
    assert_type(await greet.job(key="ada").result(), str)
    assert_type(await crunch.job(id=UUID(int=7)).result(), int)
    assert_type(app.job(UUID(int=7)), Job[Any])
    anything: Job[object] = await greet.enqueue("Ada")
    await anything.pause()
    assert_type(await anything.steps(), list[StepView])
    await anything.signal(decision, Decision(ok=True), id="click-1")
    await anything.signal(lengths, [1, 2])
    await anything.signal("plain", {"ok": True})
    assert_type(decision, Signal[Decision])


def produce_sync(ctx: SyncContext, child: ProcessContext) -> None:
    assert_type(greet.enqueue_sync("Ada"), Job[str])
    send.enqueue_sync(42, subject="Hello")
    assert_type(greet.call("Ada"), Call[str])
    calls: list[Call[object]] = [greet.call("Ada"), thumbnail.call("a.png")]
    app.enqueue_many_sync(calls)
    assert_type(thumbnail(ctx, "a.png"), bytes)
    assert_type(crunch(child, [1]), int)
    assert_type(thumbnail.job(key="a.png").result_sync(timeout="1m"), bytes)
    report.job(key="north").run_now_sync()
    greet.job(key="ada").signal_sync(decision, Decision(ok=False))
    assert_type(app.jobs_sync(task="greet", limit=10), list[JobView])
    app.schedule(report, key="tenant-7", cron="0 9 * * mon-fri", timezone="Europe/Berlin")
    app.schedule(report.call("north"), key="north", every=timedelta(hours=1), align=True)
