"""Limits, unique tasks, cancelling, schedules, pauses and the test kit: mypy and pyright accept every line of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_type
from uuid import UUID

from reltask import (
    App,
    Cancellation,
    Job,
    JobCancelled,
    JobFailed,
    Limit,
    LimitKeyView,
    LimitView,
    PauseView,
    ResultGone,
    ScheduleView,
)
from reltask.testing import Enqueued, TestKit

app = App("sqlite:///reltask.db")
smtp = Limit("smtp", running=5, rate="100/m", burst=20)


def tenth(customer: int) -> int:
    return customer % 10


@app.task(limit=smtp)
async def send(to: str) -> bool:
    return bool(to)


@app.task(limit=(smtp, Limit(running=1, by="customer")), unique=("customer", "day"), unique_for="1h")
def invoice(customer: int, day: str = "") -> None: ...


@app.task(limit=[Limit(rate="10/s", by=tenth)], unique="customer", unique_until="start")
async def index(customer: int, text: str) -> int:
    return len(text) + customer


@app.task(cron="0 9 * * *", jitter="10m", start=datetime(2030, 1, 1, tzinfo=UTC), end=datetime(2031, 1, 1, tzinfo=UTC))
async def report() -> None: ...


async def produce() -> None:
    job = await index.using(delay="2s", replace=True).enqueue(7, "abc")
    assert_type(job, Job[int])
    assert_type(job.created, bool)
    try:
        assert_type(await job.result(timeout="30s"), int)
    except (JobFailed, JobCancelled, ResultGone, TimeoutError):
        assert_type(await job.cancel(), Cancellation)
    assert_type(await app.job(UUID(int=7)).cancel(), Cancellation)
    await report.using(key="tenant-9", cron="0 7 * * *", timezone="Europe/Berlin", jitter="5m", replace=True).enqueue()


async def operate() -> None:
    assert_type(await app.limits(), list[LimitView])
    assert_type(await app.limit_keys("smtp", limit=10), list[LimitKeyView])
    await app.change_limit("smtp", running=None, rate="50/m", burst=5)
    assert_type(await app.schedules(task="report"), list[ScheduleView])
    assert_type(await app.pause(queue="mail", reason="the provider is down", by="ada"), bool)
    assert_type(await app.pauses(), list[PauseView])
    assert_type(await app.resume(task=send), bool)


def operate_sync() -> None:
    assert_type(app.limits_sync(), list[LimitView])
    app.change_limit_sync("smtp", running=0)
    assert_type(app.pause_sync(task="send"), bool)
    assert_type(app.job(UUID(int=7)).cancel_sync(), Cancellation)


def test_mail(reltask: TestKit) -> None:
    send.enqueue_sync("ada")
    assert_type(reltask.assert_enqueued(send, to="ada"), Enqueued)
    reltask.run_until_idle()
    reltask.advance("1d")
    with app.immediate() as kit:
        assert_type(kit, TestKit)
        assert_type(send.enqueue_sync("ada").result_sync(), bool)
