"""The context that a task's function receives if its first parameter asks for it.

`Context` for `async def`, `SyncContext` for `def`, `ProcessContext` for `def` in a child process. Every call on a
context first checks that the run may go on, and raises `LockLost` or `Stopped` if not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec

from reltask.errors import LockLost
from reltask.model.arguments import encode_json
from reltask.model.clock import Clock
from reltask.model.keys import KeyHash
from reltask.producer.transaction import (
    Home,
    InThread,
    OnLoop,
    SyncTransaction,
    TaskTransaction,
    current,
    wait_for,
)
from reltask.stores.store import Store
from reltask.worker.base_context import BaseContext
from reltask.worker.children import Children
from reltask.worker.durable import Durable
from reltask.worker.durable_context import DurableContext, refuse_in_step, refuse_inside
from reltask.worker.durable_sync import OnWorkersLoop, SyncDurableContext
from reltask.worker.run import Run, StopReason, log_fields
from reltask.worker.transaction import Transactions

PROGRESS_INTERVAL = 1.0
"""Seconds between two writes of a run's progress."""


class ContextServices:
    """What contexts need of their worker."""

    def __init__(
        self,
        store: Store,
        transactions: Transactions,
        children: Children,
        durable: Callable[[Run], Durable],
        *,
        worker: str,
        state: Any,
        clock: Clock,
        keys: KeyHash,
    ) -> None:
        self.worker = worker
        self.keys = keys
        self.state = state
        self.transactions = transactions
        self.children = children
        self.durable = durable
        """Makes what a run needs once it makes a durable call."""
        self._store = store
        self._clock = clock

    async def save_progress(self, run: Run, text: str) -> None:
        """Write a run's progress, at most once per PROGRESS_INTERVAL."""
        now = self._clock.monotonic()
        if now - run.progress_at < PROGRESS_INTERVAL:
            return
        run.progress_at = now
        if not await self._store.record_progress(self.worker, run.hold, text):
            run.stop(StopReason.LOST, "another worker has the claim")
            raise LockLost("Another worker has this run's claim.")


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds worker, job, slot and fence to every line. Says nothing while recorded steps are replayed."""

    def __init__(self, logger: logging.Logger, extra: dict[str, object], run: Run) -> None:
        super().__init__(logger, extra)
        self._run = run

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's own name
        return not _is_replaying(self._run) and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


def _is_replaying(run: Run) -> bool:
    return run.claim.steps > 0 if run.durable is None else bool(run.durable.journal.replaying)


class RunContext(BaseContext):
    """What `Context` and `SyncContext` have in common."""

    logger: RunLogger

    def __init__(self, run: Run, services: ContextServices) -> None:
        claim, worker = run.claim, services.worker
        self._run = run
        self._services = services
        self.task = claim.task
        self.job_id = claim.job_id
        self.key = claim.key
        self.slot_no = claim.slot_no
        self.nominal_time = claim.nominal
        self.attempt = claim.attempt
        self.fence = claim.fence
        self.idempotency_key = claim.idempotency_key
        self.queue = claim.queue
        self.worker = worker
        self._headers = claim.headers
        self.state: Any = services.state
        """What the app's lifespan yielded."""
        self.logger = RunLogger(logging.getLogger(f"reltask.task.{claim.task}"), log_fields(claim, worker), run)

    @property
    def replaying(self) -> bool:
        """Whether this run only repeats what an earlier one has recorded."""
        return _is_replaying(self._run)

    @property
    def last_progress(self) -> Any:
        """What an earlier run of this slot has published last with `progress`; None if none has."""
        progress = self._run.claim.progress
        return None if progress is None else msgspec.json.decode(progress)

    @property
    def cancelled(self) -> bool:
        """Whether this body has been asked to stop."""
        return self._run.stop_reason is not None

    def check(self) -> None:
        """Raise `LockLost` or `Stopped` if this body has been asked to stop; cheap enough for any loop."""
        self._run.check()


class Context(RunContext, DurableContext):
    """Handed to `async def` tasks."""

    async def progress(self, value: Any) -> None:
        """Publish how far this run has come: any JSON value, shown by `reltask jobs show`."""
        self.check()
        refuse_inside("progress")
        await self._services.save_progress(self._run, encode_json(value).decode())

    @asynccontextmanager
    async def transaction(self, *, complete: bool = True, connection: Any = None) -> AsyncIterator[TaskTransaction]:
        """Writes that commit together with this slot's completion, or not at all.

        With `complete=False` the block is a chunk: its writes commit only while the claim holds, and the slot goes on.
        With `connection` it runs on your own asynchronous connection or session, which must have no open transaction.
        """
        if complete:  # the step could not be recorded afterwards
            refuse_in_step("transaction")
        home = OnLoop(asyncio.get_running_loop())
        async with self._services.transactions.open(
            self._run, complete=complete, home=home, connection=connection
        ) as block:
            token = current.set(block)
            try:
                yield block
            finally:
                current.reset(token)


class SyncContext(RunContext, SyncDurableContext):
    """Handed to `def` tasks, which run in a thread."""

    def __init__(self, run: Run, services: ContextServices) -> None:
        super().__init__(run, services)
        self._loop = asyncio.get_running_loop()
        self._there = OnWorkersLoop(run, services, self._loop)
        self._open_block = partial(self._block, home=OnLoop(self._loop))

    def progress(self, value: Any) -> None:
        """Publish how far this run has come: any JSON value, shown by `reltask jobs show`."""
        self.check()
        refuse_inside("progress")
        wait_for(self._services.save_progress(self._run, encode_json(value).decode()), self._loop)

    @contextmanager
    def transaction(self, *, complete: bool = True, connection: Any = None) -> Iterator[SyncTransaction]:
        """Writes that commit together with this slot's completion, or not at all: see `Context.transaction`.

        With `connection` it runs on your own synchronous connection or session, in this thread.
        """
        if complete:
            refuse_in_step("transaction")
        home: Home = OnLoop(self._loop) if connection is None else InThread(self._loop)
        with self._block(home=home, complete=complete, connection=connection) as block:
            yield block

    @contextmanager
    def _block(self, *, home: Home, complete: bool = False, **options: Any) -> Iterator[SyncTransaction]:
        opening = self._services.transactions.open(self._run, complete=complete, home=home, **options)
        block = home.wait_for(opening.__aenter__())
        token = current.set(block)
        try:
            yield SyncTransaction(block)
        except BaseException as error:
            current.reset(token)
            if not home.wait_for(opening.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            current.reset(token)
            home.wait_for(opening.__aexit__(None, None, None))
