"""A storm of all verbs that lock, from many sessions at once, for `make verify-mssql`.

    workers      claim, with and without limits; beat, record steps, suspend, settle, or lose the claim
    producers    enqueue one-offs, unique jobs and children; signal, replace
    operators    pause, resume, run, retry, cancel, discard; pause a task; change a limit
    leader       holds the lease; reclaims, folds marks, sweeps children, recounts, prunes

Every session does all of it, in a random order, on few jobs, keys and limits, so that they meet. `WRITING` are the
verbs that must have been sent; a unit test compares it with the SQL files.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from reltask.errors import ReltaskError
from reltask.model.control import Pause, PauseKind
from reltask.model.durable import NewSignal, Recording, StepKind, StepState
from reltask.model.job import Claim, Completion, Failure, Outcome, Release, Suspension, Unique
from reltask.model.lease import Grant, LeaseRequest, Term
from reltask.model.limit import LimitRule
from reltask.model.screens import NewAction
from reltask.stores.mssql.connections import MssqlOptions
from reltask.stores.mssql.store import MssqlStore
from tests.store.store_harness import child, new_job, recurring, request, step, waiting, worker_record

SHORT = timedelta(seconds=1)
SESSIONS = 12
TASKS = ["greet", "label", "limited", "unique", "function"]
LIMIT = LimitRule(name="few", running=3, declaration="a")
Call = Callable[[], Awaitable[object]]

WRITING = frozenset({
    "acquire_lease", "add_pause", "cancel_children", "cancel_job", "claim_jobs", "claim_limited", "complete_jobs",
    "declare_job", "discard_job", "end_action", "end_pause", "enqueue_jobs", "enqueue_unique", "fail_jobs",
    "fold_marks", "forget_steps", "guard_job", "guard_lease", "heartbeat_jobs", "heartbeat_lease", "mark_dead_workers",
    "pause_job", "prune_keys", "prune_records", "prune_runs", "reclaim_jobs", "record_action", "record_progress",
    "record_steps", "recount_limits", "register_worker", "release_jobs", "release_lease", "replace_job",
    "resign_lease", "resume_job", "retry_job", "roll_up_runs", "run_job_now", "send_signals", "stop_worker",
    "suspend_jobs", "write_limit",
})  # fmt: skip
"""Every verb that locks rows, but for the two of shards, which write one row once."""


class CountingStore(MssqlStore):
    """Counts the verbs that it sends."""

    def __init__(self, url: str, calls: Counter[str]) -> None:
        super().__init__(url, options=MssqlOptions(pool_size=2))
        self._calls = calls

    async def _send(self, verb: str, columns: dict[str, object], *, writes: bool) -> list[dict[str, Any]]:
        self._calls[verb] += 1
        return await super()._send(verb, columns, writes=writes)


async def rage(url: str, seconds: float) -> tuple[Counter[str], Counter[str]]:
    """How often each verb was sent, and which errors were raised."""
    calls, errors = Counter[str](), Counter[str]()
    stores = [CountingStore(url, calls) for _ in range(SESSIONS)]
    await stores[0].write_limit(LIMIT, seen=None)
    until = time.monotonic() + seconds

    async def session(nth: int, store: CountingStore) -> None:
        one = _Session(store, f"w{nth}", random.Random(nth), calls)
        while time.monotonic() < until:
            for call in one.round():
                try:
                    await call()
                except ReltaskError as error:
                    errors[type(error).__name__] += 1

    try:
        await asyncio.gather(*(session(nth, store) for nth, store in enumerate(stores)))
    finally:
        await asyncio.gather(*(store.close() for store in stores))
    return calls, errors


class _Session:
    """One worker, producer, operator and candidate for the lead."""

    def __init__(self, store: MssqlStore, name: str, rng: random.Random, calls: Counter[str]) -> None:
        self._store = store
        self._name = name
        self._rng = rng
        self._calls = calls

    def round(self) -> list[Call]:
        calls: list[Call] = [
            self._enqueue,
            self._work,
            self._work_limited,
            self._operate,
            self._lead,
            self._sweep,
            self._control,
        ]
        self._rng.shuffle(calls)
        return calls

    async def _enqueue(self) -> None:
        rng, store = self._rng, self._store
        await store.enqueue_jobs(
            [new_job(task=rng.choice(["greet", "function"])) for _ in range(rng.randint(1, 10))]
            + [new_job(task="limited", limits=(f"few:{rng.randint(1, 2)}",)) for _ in range(rng.randint(1, 5))]
        )
        await store.enqueue_unique([new_job(task="unique", unique=Unique(key=str(rng.randint(1, 3))))])
        await store.replace_job(new_job(task="unique", key=str(rng.randint(1, 3)), unique=Unique(key="r")))
        tick = recurring(task="greet", key=str(rng.randint(1, 3)))
        await store.enqueue_jobs([tick])
        for declared in await store.read_declared([(tick.task, tick.key)]):
            await store.declare_job(recurring(task="greet", key=tick.key, declaration=str(rng.random())), seen=declared)

    async def _work(self) -> None:
        await self._store.register_worker(worker_record(self._name, tasks=TASKS))
        asked = request(self._name, tasks=TASKS, limit=self._rng.randint(1, 20), lock_timeout=SHORT)
        await self._end((await self._store.claim_jobs(asked)).claims)

    async def _work_limited(self) -> None:
        asked = request(self._name, tasks=TASKS, limit=self._rng.randint(1, 5), lock_timeout=SHORT)
        await self._end((await self._store.claim_limited(asked)).claims)
        await self._store.stop_worker(self._name)

    async def _end(self, claims: list[Claim]) -> None:
        holds = [claim.hold for claim in claims]
        await self._store.heartbeat_jobs(self._name, holds, alive_for=SHORT)
        for claim in claims[:1]:
            await self._store.record_progress(self._name, claim.hold, "half")
        ends = self._rng.choice(["complete", "wait", "fail", "release", "suspend", "lose"])
        if ends in {"complete", "wait"}:
            completions = [Completion(hold=claim.hold, has_parent=claim.has_parent) for claim in claims]
            self._calls["guard_job"] += ends == "wait" and bool(claims)
            await self._store.complete_jobs(self._name, completions, wait=ends == "wait")
        elif ends == "fail":
            await self._store.fail_jobs(
                self._name, [Failure(hold=hold, error="x", delay=timedelta(0), final=bool(holds[1:])) for hold in holds]
            )
        elif ends == "release":
            await self._store.release_jobs(self._name, [Release(hold=hold, outcome=Outcome.RELEASED) for hold in holds])
        elif ends == "suspend":
            await self._suspend(claims)

    async def _suspend(self, claims: list[Claim]) -> None:
        """Wait for a signal and for a child, and send the signal."""
        for claim in claims[:3]:
            await self._store.enqueue_jobs([child(claim, 0)])
            runs = step("labels", kind=StepKind.RUN, state=StepState.WAITING, pending=1)
            await self._store.record_steps(self._name, [Recording(hold=claim.hold, steps=(runs, waiting()))])
            await self._store.suspend_jobs(self._name, [Suspension(hold=claim.hold, seen=0, wake_at=None)])
            signal = NewSignal(id=str(uuid4()), name="go", value="1", job_id=claim.job_id)
            await self._store.send_signals([signal])
            await self._store.forget_steps(claim.job_id, "approval")

    async def _operate(self) -> None:
        store, rng = self._store, self._rng
        verbs: list[Callable[[UUID], Awaitable[object]]] = [
            store.pause_job, store.resume_job, store.run_job_now, store.retry_job, store.discard_job, store.cancel_job,
        ]  # fmt: skip
        for job in await store.list_jobs(limit=5):
            await rng.choice(verbs)(job.id)
        action = NewAction(id=uuid4(), actor=self._name, action="retry", target="all")
        await store.record_action(action)
        await store.end_action(action.id, outcome="done", changed=1)

    async def _control(self) -> None:
        await self._store.add_pause(Pause(kind=PauseKind.TASK, name="label", paused_by=self._name))
        await self._store.end_pause(PauseKind.TASK, "label")
        known = next((rule for rule in await self._store.read_limits() if rule.name == LIMIT.name), None)
        await self._store.write_limit(
            LimitRule(name=LIMIT.name, running=self._rng.randint(2, 4), declaration=str(self._rng.random())),
            seen=None if known is None else known.declaration,
        )

    async def _lead(self) -> None:
        store, acquisition = self._store, uuid4()
        asked = LeaseRequest(name="lead", holder=self._name, acquisition=acquisition, ttl=SHORT, waits=SHORT)
        answer = await store.acquire_lease(asked)
        if answer.term is None:
            return
        term = Term("lead", answer.term)
        grant = Grant(term=term, acquisition=acquisition)
        await store.heartbeat_lease(grant)
        self._calls["guard_lease"] += 1
        async with store.transaction(timeout=timedelta(seconds=30)) as transaction:
            await transaction.guard_lease(term)
        await store.prune_runs(older_than=timedelta(hours=1), most=1_000, leader=term)
        await store.prune_records(workers=SHORT, metrics=timedelta(days=1), leader=term)
        await store.roll_up_runs(leader=term)
        await store.mark_dead_workers(leader=term)
        await (store.resign_lease(grant) if self._rng.random() < 0.5 else store.release_lease(term))

    async def _sweep(self) -> None:
        await self._store.reclaim_jobs()
        await self._store.fold_marks()
        await self._store.cancel_children()
        await self._store.recount_limits()
        await self._store.prune_keys(after=("", ""), limit=100)
