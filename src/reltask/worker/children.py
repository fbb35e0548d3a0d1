"""Children of a durable function: jobs that a step inserts, and waits for.

    ctx.run_all("labels", calls) ─► one transaction: the jobs, each with its parent; the step, WAITING, pending = n
                                 ─► parked, suspended
    each child ends ─► its outcome and a mark, in the statement that ends it
    the last mark is folded ─► the parent is due ─► the ends are read, recorded with the step, and returned in order

A parent never waits in a place, so parents and children cannot starve each other, however few
workers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from reltask.errors import AmbiguousError, ChildFailed, LockLost, UsageError
from reltask.model.arguments import encode_json, value_of
from reltask.model.durable import ChildEnd, Recording, StepKind, StepState
from reltask.model.job import NewJob, Outcome, Parent
from reltask.model.shards import Here
from reltask.producer.enqueue import Call, Enqueuer
from reltask.producer.job import Job
from reltask.stores.store import BATCH, Store, Transaction
from reltask.worker.durable import Durable, DurableCall, fingerprint
from reltask.worker.journal import LOST, is_final
from reltask.worker.run import Run, StopReason

R = TypeVar("R")
_ENDS = msgspec.json.Decoder(list[ChildEnd])


class Children:
    """Starts the children of one worker's runs."""

    def __init__(self, store: Store, enqueuer: Enqueuer | None, *, worker: str, here: Here | None = None) -> None:
        self._store = store
        self._enqueuer = enqueuer
        self._worker = worker
        self._here = here
        self._shard = None if here is None else here.number

    async def run_all(self, run: Run, durable: Durable, name: str, calls: Sequence[Call[Any]]) -> list[ChildEnd]:
        """Insert these jobs, wait until all have ended, and return how, in their order."""
        call = durable.enter(name, StepKind.RUN, self._fingerprint(calls))
        try:
            step = await durable.found(call)
            if step is not None and is_final(step):
                return _ENDS.decode(step.value or "[]")
            if step is None:
                await self._start(run, durable, call, calls)
                count = len(calls)
            else:
                count = len(msgspec.json.decode(step.value or "[]"))
            return await durable.ends_of(call, count) if count else []
        finally:
            durable.leave(call)

    async def start(self, run: Run, durable: Durable, name: str, wanted: Call[R]) -> Job[R]:
        """Insert a job that is not waited for, and return its handle; at a replay, the same job's."""
        enqueuer = self._producer()
        call = durable.enter(name, StepKind.START, self._fingerprint([wanted]))
        try:
            step = await durable.found(call)
            if step is None:
                (job_id,) = enqueuer.new_ids(1, shard=self._shard)
                job = msgspec.structs.replace(wanted.job(job_id, enqueuer.access.keys), unique=None)
                if self._here is not None:
                    self._here.place([job])  # a key that lives elsewhere is refused
                done = call.record(StepState.DONE, value=encode_json(job_id).decode())
                await self._insert(run, [job], durable.journal.in_transaction(done), durable)
            else:
                job_id = msgspec.json.decode(step.value or "null", type=UUID)
            return enqueuer.access.job(job_id, wanted.task)
        finally:
            durable.leave(call)

    async def _start(self, run: Run, durable: Durable, call: DurableCall, calls: Sequence[Call[Any]]) -> None:
        claim = run.claim
        jobs = [
            msgspec.structs.replace(
                wanted.job(job_id, self._producer().access.keys),
                parent=Parent(job_id=claim.job_id, slot_no=claim.slot_no, step=call.name, nth=nth),
                unique=None,  # its parent waits for this job, not for one that has the same key
            )
            for nth, (wanted, job_id) in enumerate(
                zip(calls, self._producer().new_ids(len(calls), shard=self._shard) if calls else [], strict=True)
            )
        ]
        ids = encode_json([job.id for job in jobs]).decode()
        state = StepState.WAITING if jobs else StepState.DONE
        record = call.record(state, value=ids, pending=len(jobs))
        await self._insert(run, jobs, durable.journal.in_transaction(record), durable)

    async def _insert(self, run: Run, jobs: list[NewJob], recording: Recording, durable: Durable) -> None:
        """Insert jobs and record their step in one transaction, or neither. Waits while the database is away."""
        await durable.patiently(lambda: self._commit(run, jobs, recording))
        durable.journal.written(recording)
        await self._producer().access.sender.signal(self._store, [job.id for job in jobs])

    async def _commit(self, run: Run, jobs: list[NewJob], recording: Recording) -> None:
        try:
            async with self._store.transaction(timeout=run.claim.lock_timeout) as transaction:
                await _insert_all(transaction, jobs)
                if not await transaction.record_steps(self._worker, recording):
                    raise LockLost(f"The children were not inserted: {LOST}.")
        except AmbiguousError as error:
            why = "the answer to a commit was lost; the next run reads what was recorded"
            run.stop(StopReason.ABANDONED, why)
            raise LockLost(f"This run ends: {why}.") from error

    def _fingerprint(self, calls: Sequence[Call[Any]]) -> str:
        _check(calls)
        given = [[call.task.name, call.args] for call in calls]
        return fingerprint(Children.run_all, given, {}, self._producer().access.keys)

    def _producer(self) -> Enqueuer:
        if self._enqueuer is None:
            raise UsageError("This worker belongs to no app, and cannot enqueue.")
        return self._enqueuer


async def _insert_all(transaction: Transaction, jobs: list[NewJob]) -> None:
    for start in range(0, len(jobs), BATCH):
        batch = jobs[start : start + BATCH]
        created = await transaction.enqueue_jobs(batch)
        for job in batch:
            if job.id not in created:  # a job of another's: its end would never be reported here
                raise UsageError(
                    f"A job of {job.task} with the key {job.key!r} exists already, so it cannot be a child.",
                    remedy="Give the child another key, or none.",
                )


def results_of(calls: Sequence[Call[Any]], ends: Sequence[ChildEnd], *, return_exceptions: bool) -> list[Any]:
    """What each child returned; ChildFailed if one did not, or in its place with `return_exceptions`."""
    if len(calls) != len(ends):
        raise UsageError(
            f"The step is recorded with {len(ends)} children, and was called with {len(calls)}.",
            remedy="A new meaning needs a new name.",
        )
    outcomes = [_result_of(call, end) for call, end in zip(calls, ends, strict=True)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, ChildFailed)]
    if failed and not return_exceptions:
        raise ChildFailed(f"{len(failed)} of {len(outcomes)} children failed. {failed[0]}", outcomes=tuple(outcomes))
    return outcomes


def _result_of(call: Call[Any], end: ChildEnd) -> Any:
    last = (end.error or "").strip().rpartition("\n")[2]
    if end.outcome is Outcome.SUCCEEDED and not (end.value is None and last):
        codec = value_of(call.task.function, label=f"The result of {call.task.name}")
        return codec.decode(end.value or "null")
    return ChildFailed(f"{call.task.name} {end.job_id} {end.outcome}{f': {last}' if last else ''}")


def listed(calls: Iterable[Call[R]]) -> list[Call[R]]:
    """The calls that were given to `run_all`, read once."""
    if isinstance(calls, Iterable):
        return list(calls)
    raise UsageError(
        f"ctx.run_all takes a list of calls, not {type(calls).__name__}.",
        remedy='Write ctx.run_all("labels", [label.call(…)]); for a single one: ctx.run("label", label.call(…)).',
    )


def _check(calls: Sequence[Call[Any]]) -> None:
    for call in calls:
        if not isinstance(call, Call):
            raise UsageError(
                f"ctx.run takes calls, not {type(call).__name__}.", remedy='Write ctx.run("label", label.call(…)).'
            )
        if call.options.schedule is not None:
            raise UsageError("A recurring job has no end that could be waited for.", remedy="Leave out the schedule.")
