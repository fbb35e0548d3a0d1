"""What every context has, whatever kind of body it is handed to: middleware receives it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol
from uuid import UUID

from reltask.model.surroundings import visible_headers


class BaseContext(ABC):
    """The facts of a run."""

    task: str
    job_id: UUID
    key: str | None
    queue: str
    slot_no: int
    nominal_time: datetime
    attempt: int
    fence: int
    """Grows with every claim of this job. Pass it to other systems, so that they can refuse an older one."""
    idempotency_key: str
    """The same for every run of this slot. Other systems can use it to apply an effect once."""
    worker: str
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger]
    _headers: str | None

    @cached_property
    def headers(self) -> Mapping[str, Any]:
        """What was enqueued with the job beside its arguments: `using(headers={…})`."""
        return visible_headers(self._headers)

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether this body has been asked to stop."""

    @abstractmethod
    def check(self) -> None:
        """Raise `LockLost` or `Stopped` if this body has been asked to stop; cheap enough for any loop."""


class Middleware(Protocol):
    """A context manager around each run: a function with `@contextmanager`, or a class."""

    def __call__(self, ctx: BaseContext, /) -> AbstractContextManager[object]:
        """What is entered before the body, and left after it."""
        ...
