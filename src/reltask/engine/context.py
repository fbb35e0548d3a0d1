"""What a task body is handed when its first parameter asks for it.

`Context` for `async def`, `SyncContext` for `def`, `ProcessContext` for `def` in a child process. Every call on a
context first checks that the run may go on, and raises `LockLost` or `Stopped` if not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from reltask.arguments import encode_json
from reltask.engine.run import Run

ProgressWriter = Callable[[str], Awaitable[None]]


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds worker, job, slot and fence to every line."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


class BaseContext:
    """The facts of a run, the same for every kind of body."""

    def __init__(self, run: Run, *, worker: str, state: Any, save_progress: ProgressWriter) -> None:
        claim = run.claim
        self._run = run
        self._save_progress = save_progress
        self.task: str = claim.task
        self.job_id: UUID = claim.job_id
        self.key: str | None = claim.key
        self.slot_no: int = claim.slot_no
        self.nominal_time: datetime = claim.nominal
        self.attempt: int = claim.attempt
        self.fence: int = claim.fence
        """Grows with every claim of this job: present it to other systems, and let them refuse an older one."""
        self.idempotency_key: str = claim.idempotency_key
        """The same for every run of this slot: what makes an effect elsewhere happen once."""
        self.worker: str = worker
        self.state: Any = state
        """What the app's lifespan yielded."""
        extra = {"worker": worker, "job": str(claim.job_id), "slot": claim.slot_no, "fence": claim.fence}
        self.logger = RunLogger(logging.getLogger(f"reltask.task.{claim.task}"), extra)

    @property
    def cancelled(self) -> bool:
        """Whether this body has been asked to stop."""
        return self._run.stop_reason is not None

    def check(self) -> None:
        """Raise `LockLost` or `Stopped` if this body has been asked to stop; cheap enough for any loop."""
        self._run.check()


class Context(BaseContext):
    """Handed to `async def` tasks."""

    async def progress(self, value: Any) -> None:
        """Publish how far this run has come: any JSON value, shown by `reltask jobs show`."""
        self.check()
        await self._save_progress(encode_json(value).decode())


class SyncContext(BaseContext):
    """Handed to `def` tasks, which run in a thread."""

    def __init__(self, run: Run, *, worker: str, state: Any, save_progress: ProgressWriter) -> None:
        super().__init__(run, worker=worker, state=state, save_progress=save_progress)
        self._loop = asyncio.get_running_loop()

    def progress(self, value: Any) -> None:
        """Publish how far this run has come: any JSON value, shown by `reltask jobs show`."""
        self.check()
        text = encode_json(value).decode()
        asyncio.run_coroutine_threadsafe(_awaited(self._save_progress(text)), self._loop).result()


async def _awaited(work: Awaitable[None]) -> None:
    await work
