"""`ctx.transaction()`: a task's writes and its completion commit together, or neither does.

    BEGIN ─► is the claim still ours? ─► the task's own statements ─► complete, naming owner and fence ─► COMMIT
             (a plain read: no lock,      (jobs enqueued here too)     │ 0 rows: ROLLBACK and LockLost
              so beats and reclaims                                    └ 1 row: it stays locked until the commit,
              are not kept waiting)                                            so it cannot be reclaimed in between

The completion comes last, so its row lock is held only until the commit. A worker that froze before
it finds 0 rows when it wakes up. A worker that froze after it is disconnected by the server's
timeout.

A block with `complete=False` is a fenced chunk: the same, except that the last statement renews the claim.

With `connection=` all of it happens on the user's own connection, through `Store.borrow`. A
synchronous one is used in the body's own thread, and its coroutines never wait; only calls to the
store itself go to the worker's loop:

    own connection               body ──► worker's loop ──► transaction, store
    connection=, async task      body ══► worker's loop ══► transaction, store           ──► hops to another thread
    connection=, def task        body ══► transaction;  body ──► worker's loop ──► store   ══► stays where it is
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from reltask.errors import AmbiguousError, DatabaseError, LockLost, UsageError
from reltask.model.clock import Clock
from reltask.model.durable import Recording
from reltask.model.job import Completion, Outcome
from reltask.model.shards import Here
from reltask.producer.transaction import Home, OnLoop, TaskTransaction, open_transaction
from reltask.stores.store import Store, Transaction
from reltask.worker.beater import Beater
from reltask.worker.outcome import complete as completion_of
from reltask.worker.outcome import returned
from reltask.worker.run import Run, StopReason

_LOST = "another worker has the claim"


class Transactions:
    """Opens the transactions of one worker's runs."""

    def __init__(
        self, store: Store, *, worker: str, beater: Beater, clock: Clock, result_limit: int, here: Here | None = None
    ) -> None:
        self._store = store
        self._worker = worker
        self._heartbeats = beater.heartbeats
        self._clock = clock
        self._result_limit = result_limit
        self._here = here

    @asynccontextmanager
    async def open(
        self,
        run: Run,
        *,
        complete: bool,
        home: Home,
        connection: object = None,
        record: Callable[[], Recording] | None = None,
    ) -> AsyncIterator[TaskTransaction]:
        """A block of the run's own; it is committed only while the claim holds.

        With `record`, its last statement records a step.
        """
        _refuse_second(run)
        run.check()
        completion: Completion | None = None
        try:
            async with self._begin(run, home, connection) as inner:
                await self._check(run, inner)
                block = TaskTransaction(inner, home, self._here)
                try:
                    yield block
                finally:
                    block.open = False
                run.check()
                completion = self._completion(run, block) if complete else None
                await self._seal(run, inner, completion, None if record is None else record())
        except AmbiguousError as error:
            if not await home.on_loop(self._was_committed(run, completion)):
                self._heartbeats.settling([run.hold], is_settling=False)
                if record is None:
                    raise
                why = "the answer to a commit was lost; the next run reads what was recorded"
                run.stop(StopReason.ABANDONED, why)
                raise LockLost(f"This run ends: {why}.") from error
        except BaseException as error:
            self._heartbeats.settling([run.hold], is_settling=False)
            if isinstance(error, LockLost):  # after the rollback: a stop would interrupt it
                run.stop(StopReason.LOST, _LOST)
            raise
        run.completion = completion
        if block.enqueued:
            await home.on_loop(self._store.signal())

    def _begin(self, run: Run, home: Home, connection: object) -> AbstractAsyncContextManager[Transaction]:
        timeout = run.claim.lock_timeout
        if connection is None:
            return self._store.transaction(timeout=timeout)
        borrowed = self._store.borrow(connection)
        if borrowed.is_async != isinstance(home, OnLoop):
            raise _mismatch(is_async=borrowed.is_async)
        return borrowed.transaction(timeout=timeout)

    async def _check(self, run: Run, inner: Transaction) -> None:
        if not await inner.holds_job(self._worker, run.hold):
            raise LockLost(f"This run's writes were rolled back: {_LOST}.")

    def _completion(self, run: Run, block: TaskTransaction) -> Completion:
        ended = returned(block.result, limit=self._result_limit)
        if ended.outcome is not Outcome.SUCCEEDED:
            raise UsageError(f"tx.result is no result. {ended.error}")  # before the commit: nothing is applied
        run.not_stored, run.is_completing = ended.not_stored, True
        return completion_of(run, ended, self._clock.monotonic())

    async def _seal(
        self, run: Run, inner: Transaction, completion: Completion | None, recording: Recording | None
    ) -> None:
        """The last statement before the commit: it names owner and fence, and holds the row."""
        if recording is not None:
            won = await inner.record_steps(self._worker, recording)
        elif completion is None:
            won = await inner.guard_job(self._worker, run.hold)
        else:
            # From here on the row may be gone because this run ended it: not a lost lock.
            self._heartbeats.settling([run.hold])
            won = await inner.complete_job(self._worker, completion)
        if not won:
            raise LockLost(f"This run's writes were rolled back: {_LOST}.")

    async def _was_committed(self, run: Run, completion: Completion | None) -> bool:
        """Whether the ledger shows the commit whose answer was lost.

        If it does not show it yet, the run's settlement decides: it names the fence, waits for the
        row, and reads the ledger again.
        """
        if completion is None:
            return False
        try:
            recorded = await self._store.read_outcomes([run.hold])
        except DatabaseError:
            return False
        return recorded.get(run.hold) is Outcome.SUCCEEDED


def _refuse_second(run: Run) -> None:
    if open_transaction() is not None:
        raise UsageError("A transaction is open already in this body.", remedy="Leave it before you open another.")
    if run.completion is not None:
        raise UsageError(
            "This slot has been completed by an earlier transaction of this body.",
            remedy="Use ctx.transaction(complete=False) for all but the last block.",
        )


def _mismatch(*, is_async: bool) -> UsageError:
    if is_async:
        return UsageError(
            "A def task cannot wait for an asynchronous connection.", remedy="Write the task as async def."
        )
    return UsageError(
        "A synchronous connection would block the worker's event loop.",
        remedy="Write the task as def, which runs in a thread, or pass an asynchronous connection.",
    )
