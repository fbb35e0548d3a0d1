"""A busy system for the dashboard's tests: 200 jobs, failures, dead letters, leases, durable functions, pauses.

It is made through the store's own verbs, so that it is the same on every database and at once there.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from msgspec import Struct

from reltask import App, Limit
from reltask.model.control import Pause, PauseKind
from reltask.model.durable import NewSignal, Recording, StepKind, StepRecord, StepState
from reltask.model.job import Claim, ClaimRequest, Completion, Failure, NewJob, Suspension, WorkerRecord
from reltask.model.lease import Grant, LeaseRequest, Term
from reltask.stores.store import Store
from reltask.version import __version__

QUEUES = ("default", "mail", "payments", "reports")
TASKS = ("send_welcome", "resize_image", "sync_customer", "nightly_report", "charge_card", "refresh_rates")
TRACEBACK = """Traceback (most recent call last):
  File "shop/mail.py", line 41, in send_welcome
    server.send(message)
  File "shop/smtp.py", line 17, in send
    raise ConnectionError(f"mail server answered {code} for {address!r}")
ConnectionError: mail server answered 451 for 'customer-%d@example.org'
"""


class Busy(Struct):
    """What tests refer to."""

    due: list[UUID]
    dead: list[UUID]
    running: list[UUID]
    suspended: UUID
    paused: UUID
    schedule: UUID
    limited: UUID


def shop(url: str) -> App:
    """An app with the tasks of a small shop."""
    app = App(url, version="2.4.1")
    for name in TASKS:
        app.task(name=name, queue="mail" if name == "send_welcome" else "default")(_nothing)
    return app


def _nothing() -> None:
    """A body: nothing runs here."""


def record(name: str, **fields: object) -> WorkerRecord:
    """A worker that serves everything."""
    given: dict[str, object] = {
        "id": f"worker_{name}_4711_{uuid4().hex}",
        "host": name,
        "pid": 4711,
        "version": __version__,
        "app_version": "2.4.1",
        "queues": ["default", "mail", "payments"],
        "tasks": list(TASKS),
        "concurrency": 12,
        "alive_for": timedelta(minutes=30),
    }
    return WorkerRecord(**{**given, **fields})  # type: ignore[arg-type]


async def claim(store: Store, worker: str, task: str, queue: str = "default", limit: int = 1) -> list[Claim]:
    """Claim jobs of one task."""
    request = ClaimRequest(
        worker=worker,
        token=uuid4(),
        queues=[queue],
        tasks=[task],
        limit=limit,
        lock_timeout=timedelta(minutes=10),
        isolated=True,
        alive_for=timedelta(minutes=30),
    )
    return (await store.claim_jobs(request)).claims


async def populate(store: Store) -> Busy:
    """Make the system busy."""
    now = datetime.now(UTC)
    first, second = record("web-1"), record("web-2", app_version="2.4.0", queues=["default"])
    gone = record("web-3")
    for one in (first, second, gone):
        await store.register_worker(one)
    await store.stop_worker(gone.id)
    await _history(store, first.id)
    dead = await _dead(store, first.id)
    running = await _running(store, first.id, second.id)
    due = [
        NewJob(id=uuid4(), task=task, queue=queue, args='{"user_id": 42}', run_at=now - timedelta(seconds=nth * 7))
        for nth in range(25)
        for task, queue in (("send_welcome", "mail"), ("resize_image", "default"), ("sync_customer", "reports"))
    ]
    later = [NewJob(id=uuid4(), task="charge_card", delay=timedelta(minutes=30 + nth)) for nth in range(29)]
    await store.enqueue_jobs([*due, *later])
    paused = due[0].id
    assert await store.pause_job(paused)
    await store.add_pause(Pause(kind=PauseKind.TASK, name="nightly_report", reason="month end", paused_by="ada"))
    suspended = await _durable(store, first.id)
    schedule = await _schedules(store)
    await _leases(store, first.id, second.id)
    await store.roll_up_runs(leader=None)
    return Busy(
        due=[job.id for job in due[1:]],
        dead=dead,
        running=running,
        suspended=suspended,
        paused=paused,
        schedule=schedule,
        limited=await _limited(store, first.id),
    )


async def _history(store: Store, worker: str) -> None:
    jobs = [NewJob(id=uuid4(), task=task, args='{"n": 1}') for _ in range(12) for task in TASKS[1:4]]
    await store.enqueue_jobs(jobs)
    for task in TASKS[1:4]:
        claims = await claim(store, worker, task, limit=20)
        await store.complete_jobs(worker, [Completion(hold=one.hold, result='"ok"') for one in claims])


async def _dead(store: Store, worker: str) -> list[UUID]:
    jobs = [NewJob(id=uuid4(), task="send_welcome", queue="mail", max_attempts=1) for _ in range(7)]
    jobs += [NewJob(id=uuid4(), task="charge_card", max_attempts=1) for _ in range(2)]
    await store.enqueue_jobs(jobs)
    mails = await claim(store, worker, "send_welcome", "mail", limit=10)
    cards = await claim(store, worker, "charge_card", limit=10)
    failures = [Failure(hold=one.hold, error=TRACEBACK % nth, delay=timedelta(0)) for nth, one in enumerate(mails)]
    failures += [
        Failure(hold=one.hold, error="TimeoutError: the bank did not answer within 30 s", delay=timedelta(0))
        for one in cards
    ]
    await store.fail_jobs(worker, failures)
    return [one.job_id for one in mails]


async def _running(store: Store, *workers: str) -> list[UUID]:
    await store.enqueue_jobs([NewJob(id=uuid4(), task="resize_image") for _ in range(9)])
    found = []
    for worker, count in zip(workers, (6, 3), strict=True):
        found += [one.job_id for one in await claim(store, worker, "resize_image", limit=count)]
    return found


async def _durable(store: Store, worker: str) -> UUID:
    await store.enqueue_jobs([NewJob(id=uuid4(), task="charge_card", key="order-1187", args='{"order": 1187}')])
    (held,) = await claim(store, worker, "charge_card")
    now = datetime.now(UTC)
    steps = (
        StepRecord(name="reserve", kind=StepKind.STEP, state=StepState.DONE, started_at=now, value='"R-93"'),
        StepRecord(name="approval", kind=StepKind.WAIT, state=StepState.WAITING, started_at=now, signal="approved"),
    )
    await store.record_steps(worker, [Recording(hold=held.hold, steps=steps)])
    await store.suspend_jobs(worker, [Suspension(hold=held.hold, seen=0, wake_at=now + timedelta(days=2))])
    await store.send_signals([NewSignal(id="first", name="note", value='"hello"', job_id=held.job_id)])
    return held.job_id


async def _limited(store: Store, worker: str) -> UUID:
    """Two of two run, and three wait; one customer's job runs, and nothing waits."""
    rules = (Limit("bank", running=2, rate="60/m", burst=10), Limit("customer", running=1, by="customer"))
    for rule in rules:
        assert await store.write_limit(rule.rule(rule.name or ""), seen=None)
    jobs = [NewJob(id=uuid4(), task="charge_card", queue="payments", limits=("bank",)) for _ in range(5)]
    jobs += [NewJob(id=uuid4(), task="charge_card", queue="payments", limits=("customer:7",))]
    await store.enqueue_jobs(jobs)
    request = ClaimRequest(
        worker=worker,
        token=uuid4(),
        queues=["payments"],
        tasks=["charge_card"],
        limit=10,
        lock_timeout=timedelta(minutes=10),
        isolated=True,
        alive_for=timedelta(minutes=30),
    )
    claimed = {one.job_id for one in (await store.claim_limited(request)).claims}
    assert len(claimed) == 3
    return next(job.id for job in jobs if job.id not in claimed)


async def _schedules(store: Store) -> UUID:
    rates = NewJob(
        id=uuid4(), task="refresh_rates", schedule='{"every":"10m","missed_grace":"1m"}', delay=timedelta(minutes=4)
    )
    nightly = NewJob(
        id=uuid4(),
        task="nightly_report",
        key="tenant-7",
        schedule='{"cron":"0 2 * * *","timezone":"Europe/Berlin","missed_grace":"1m"}',
        delay=timedelta(hours=5),
    )
    await store.enqueue_jobs([rates, nightly])
    return rates.id


async def _leases(store: Store, first: str, second: str) -> None:
    for name, holder in (("reltask:maintenance", first), ("billing-export", second)):
        request = LeaseRequest(name=name, holder=holder, acquisition=uuid4(), ttl=timedelta(minutes=30))
        answer = await store.acquire_lease(request)
        assert answer.term is not None
        grant = Grant(term=Term(name, answer.term), acquisition=request.acquisition)
        published = {"last_run": datetime.now(UTC).isoformat(), "items": 12, "errors": 0}
        await store.heartbeat_lease(grant, metadata=json.dumps(published))
    waiting = LeaseRequest(
        name="billing-export", holder=first, acquisition=uuid4(), ttl=timedelta(minutes=1), waits=timedelta(minutes=9)
    )
    await store.acquire_lease(waiting)
