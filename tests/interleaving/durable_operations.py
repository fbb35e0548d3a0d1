"""The verbs of durable functions as operations, as in `operations.py`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from reltask.model.durable import NewSignal, Recording, StepKind, StepRecord, StepState
from reltask.model.job import Cancellation, Completion, Failure, Hold, NewJob, Parent, Suspension, Verb
from tests.interleaving.driver import Session
from tests.interleaving.operations import BEFORE, HOLD, A, B, C, Operation, T, one_off

WEEK = timedelta(days=7)
STARTED = BEFORE
GO = NewSignal(id="click-1", name="go", value="true", job_id=A)
"""The signal that the waiting step waits for."""

CHILDREN: list[NewJob] = [
    one_off(job_id, parent=Parent(job_id=A, slot_no=1, step="all", nth=nth)) for nth, job_id in enumerate((B, C))
]


def step(name: str = "one", **fields: Any) -> StepRecord:
    given = {"kind": StepKind.STEP, "state": StepState.DONE, "value": "1", "started_at": STARTED, **fields}
    return StepRecord(name=name, **given)


WAIT = step("wait", kind=StepKind.WAIT, state=StepState.WAITING, value=None, signal="go", wake_at=T + WEEK)
"""It waits for the signal, at most a week."""
ANSWERED = step("wait", kind=StepKind.WAIT, value="true", signal="go", signal_id=GO.id)
"""The same step with its signal, which it consumes."""
RUN_ALL = step("all", kind=StepKind.RUN, state=StepState.WAITING, value=None, pending=len(CHILDREN))
"""It waits for its two children."""


def record(*steps: StepRecord, hold: Hold = HOLD, progress: bool = True) -> Operation:
    given = Recording(hold=hold, steps=steps or (step(),), progress=progress)

    async def statement(session: Session) -> Any:
        return await session.store.record_steps("alice", [given])

    return Operation("record", (statement,), jobs=(hold.job_id,), never_waits=True)


def transact(*steps: StepRecord, hold: Hold = HOLD) -> Operation:
    """The task's write and the record: one commit, or none."""
    given = Recording(hold=hold, steps=steps or (step(),))

    async def write(session: Session) -> Any:
        if await session.transaction.holds_job("alice", hold):
            await session.write_effect(hold.job_id, "step")

    async def end(session: Session) -> Any:
        return await session.transaction.record_steps("alice", given)

    return Operation("transact", (write, end), jobs=(hold.job_id,), fenced_end=True)


def suspend(hold: Hold = HOLD, *, seen: int = 0) -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.suspend_jobs("alice", [Suspension(hold=hold, seen=seen, wake_at=T + WEEK)])

    return Operation("suspend", (statement,), Verb.SUSPEND, (hold.job_id,), never_waits=True)


def send(*signals: NewSignal) -> Operation:
    """It locks no job; it may wait for another sender of the same signal."""

    async def statement(session: Session) -> Any:
        return await session.transaction.send_signals(signals or (GO,))

    return Operation("send", (statement,), jobs=())


def fold() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.fold_marks()

    return Operation("fold", (statement,), never_waits=True)


def end(job_id: UUID = B) -> Operation:
    """A child succeeds."""

    async def statement(session: Session) -> Any:
        return await session.store.complete_jobs(
            "alice", [Completion(hold=Hold(job_id, 1), result='"done"', has_parent=True)]
        )

    return Operation(f"end {job_id.hex[-1]}", (statement,), Verb.COMPLETE, (job_id,), never_waits=True)


def die(job_id: UUID = B) -> Operation:
    """A child fails for the last time."""

    async def statement(session: Session) -> Any:
        failure = Failure(hold=Hold(job_id, 1), error="boom", delay=timedelta(0), final=True)
        return await session.store.fail_jobs("alice", [failure])

    return Operation(f"die {job_id.hex[-1]}", (statement,), Verb.FAIL, (job_id,), never_waits=True)


def cancel_children(*jobs: UUID) -> Operation:
    async def statement(session: Session) -> Any:
        orphans = await session.store.cancel_children()
        return [*(str(job_id) for job_id in orphans.ended), *(Cancellation.STOPPING for _ in orphans.stopping)]

    return Operation("cancel children", (statement,), Verb.DISCARD, jobs or (B,), never_waits=True)


def forget(name: str = "wait") -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.forget_steps(A, name)

    return Operation("forget", (statement,))
