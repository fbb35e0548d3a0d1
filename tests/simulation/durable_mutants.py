"""Durable functions, deliberately broken: each trap of their protocol, and the simulation must catch it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from reltask.errors import DatabaseError
from reltask.model.durable import Recording, StepRecord, StepState, Waits
from reltask.stores.store import Transaction
from reltask.worker import children
from reltask.worker.durable import Durable
from reltask.worker.journal import TURNS, Journal, RaisedFailure
from reltask.worker.parking import Parking
from reltask.worker.transaction import Transactions
from tests.simulation.broken import Mutant, method, sql
from tests.simulation.network import SimStore

# Statements


def suspend_whatever_was_seen() -> Any:
    return sql("suspend_jobs", ("wake_seq = batch.seen", "1 = 1"))


def suspend_without_attempt() -> Any:
    return sql("suspend_jobs", ("attempt = max(attempt - 1, 0),", "attempt = attempt,"))


def record_without_fence() -> Any:
    return sql(
        "record_steps",
        ("jobs.fence = batch.fence", "1 = 1"),
        ("+jobs.locked_by = :worker", "1 = 1"),
        ("+reltask_jobs.locked_by = :worker", "1 = 1"),
        ("reltask_1 = 1", "1 = 1"),
        ("jobs.fence = json_extract(recording.value, '$.fence')", "1 = 1"),
    )


def record_without_signal() -> Any:
    return sql("record_steps", ("set consumed_by = batch.name", "set consumed_by = null"))


def progress_counts_from_nothing() -> Any:
    return sql("record_steps", ("then 1 else attempt end", "then 0 else attempt end"))


def fold_drops_marks_of_claimed_jobs() -> Any:
    return sql("fold_marks", ("and reltask_jobs.slot_no = marked.slot_no", "and reltask_jobs.locked_by is null"))


def fold_forgets_the_name() -> Any:
    return sql("fold_marks", ("steps.signal = taken.name", "steps.name = taken.name"))


@contextmanager
def dead_child_keeps_its_parent() -> Iterator[None]:
    """The key of the ends refuses the second one by itself, so the mark must not ask for it, either."""
    again = ("where parent_id = jobs.parent_id and slot_no = jobs.parent_slot", "where false")
    keeps = ("where dead_at is not null and parent_id is not null;", "where false;")
    with sql("fail_jobs", keeps, again), sql("complete_jobs", again):
        yield


def start_without_clearing_steps() -> Any:
    return sql("complete_jobs", ("    steps = 0,\n", ""))


# The worker


async def look_twice(self: SimStore, job_id: UUID, slot_no: int) -> Waits | None:
    """What has come is read first, and the number afterwards."""
    come = await self._call("read_waits", (job_id, slot_no), {})
    await self._clock.sleep(0.3)
    seen = await self._call("read_waits", (job_id, slot_no), {})
    return None if come is None or seen is None else msgspec.structs.replace(come, wake_seq=seen.wake_seq)


async def consume_at_the_look(self: SimStore, job_id: UUID, slot_no: int) -> Waits | None:
    """A signal is consumed when it is read, before the wait that it ends is recorded."""
    waits: Waits | None = await self._call("read_waits", (job_id, slot_no), {})
    for signal in waits.signals if waits else ():
        self._database.session.connection().execute(
            "update reltask_signals set consumed_by = 'a look' where job_id = ? and id = ?", (str(job_id), signal.id)
        )
    return waits


async def take_keys_for_children(transaction: Transaction, jobs: list[Any]) -> None:
    await transaction.enqueue_jobs(jobs)


async def record_after_the_commit(self: Transactions, run: Any, inner: Any, completion: Any, recording: Any) -> None:
    """The step's record is a statement of its own."""
    if recording is None:
        await Transactions_seal(self, run, inner, completion, recording)
        return
    await inner.guard_job(self._worker, run.hold)
    asyncio.get_running_loop().create_task(_record_soon(self, recording))


async def _record_soon(self: Transactions, recording: Recording) -> None:
    await asyncio.sleep(0.01)
    with suppress(DatabaseError):
        await self._store.record_steps(self._worker, [recording])


Transactions_seal = Transactions._seal


def record_every_failure(self: Journal, record: StepRecord) -> None:
    """The failure is recorded at once, whether the body catches it or not."""
    self._failures.append(RaisedFailure(record, None, age=TURNS, is_caught=True))
    asyncio.get_running_loop().create_task(_quietly(self))


async def _quietly(self: Journal) -> None:
    with suppress(Exception):
        await self.write_caught()


async def restart_timeouts(self: Durable, call: Any) -> Any:
    step = await Durable_found(self, call)
    if step is None or step.wake_at is None or step.state is not StepState.WAITING:
        return step
    return msgspec.structs.replace(step, wake_at=self.parking.now() + (step.wake_at - step.started_at))


Durable_found = Durable.found


async def null_is_nothing(self: Journal, name: str) -> Any:
    step = await Journal_find(self, name)
    return None if step is not None and step.value == "null" else step


Journal_find = Journal.find


def suspend_beside_work(self: Parking, waits: Waits) -> bool:
    """The run is suspended although a call has been woken."""
    Parking_wake(self, waits)
    return False


Parking_wake = Parking._wake


def looks_twice() -> Any:
    return mock.patch.object(SimStore, "read_waits", look_twice, create=True)


def consumes_at_the_look() -> Any:
    return mock.patch.object(SimStore, "read_waits", consume_at_the_look, create=True)


def takes_keys_for_children() -> Any:
    return mock.patch.object(children, "_insert_all", take_keys_for_children)


DURABLE_MUTANTS = [
    Mutant("suspension ignores what was seen", suspend_whatever_was_seen),
    Mutant("suspension keeps its attempt", suspend_without_attempt),
    Mutant("signals and their number are read separately", looks_twice),
    Mutant("no fence on records", record_without_fence),
    Mutant("signal consumed before the record", consumes_at_the_look),
    Mutant("signal not consumed by the record", record_without_signal),
    Mutant("fold drops marks of claimed jobs", fold_drops_marks_of_claimed_jobs),
    Mutant("fold looks for a step of the signal's name", fold_forgets_the_name),
    Mutant("dead child counts again after a retry", dead_child_keeps_its_parent),
    Mutant("pending counts children that were not inserted", takes_keys_for_children),
    Mutant("progress sets attempts to 0", progress_counts_from_nothing),
    Mutant("the next slot keeps the number of steps", start_without_clearing_steps),
    Mutant("transact records after its commit", method(Transactions, "_seal", record_after_the_commit)),
    Mutant("a failure is recorded before it is caught", method(Journal, "fail", record_every_failure)),
    Mutant("a replay restarts timeouts", method(Durable, "found", restart_timeouts)),
    Mutant("recorded null counts as not recorded", method(Journal, "find", null_is_nothing)),
    Mutant("suspended although a call goes on", method(Parking, "_wake", suspend_beside_work)),
]
