"""Scheduled and background tasks, exactly once across any number of workers, on the SQL database you already have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reltask.version import __version__ as __version__

if TYPE_CHECKING:
    from reltask.app import App as App
    from reltask.errors import Cancel as Cancel
    from reltask.errors import LeaseLost as LeaseLost
    from reltask.errors import LeaseTaken as LeaseTaken
    from reltask.errors import LockLost as LockLost
    from reltask.errors import ReltaskError as ReltaskError
    from reltask.errors import Retry as Retry
    from reltask.errors import Snooze as Snooze
    from reltask.errors import Stopped as Stopped
    from reltask.leases.handle import Lease as Lease
    from reltask.model.backoff import Backoff as Backoff
    from reltask.producer.call import Call as Call
    from reltask.producer.call import Job as Job
    from reltask.producer.task import Task as Task
    from reltask.worker.child import ProcessContext as ProcessContext
    from reltask.worker.context import Context as Context
    from reltask.worker.context import SyncContext as SyncContext

_HOMES = {
    "App": "app",
    "Backoff": "model.backoff",
    "Call": "producer.call",
    "Cancel": "errors",
    "Context": "worker.context",
    "Job": "producer.call",
    "Lease": "leases.handle",
    "LeaseLost": "errors",
    "LeaseTaken": "errors",
    "LockLost": "errors",
    "ProcessContext": "worker.child",
    "ReltaskError": "errors",
    "Retry": "errors",
    "Snooze": "errors",
    "Stopped": "errors",
    "SyncContext": "worker.context",
    "Task": "producer.task",
}
"""Where each public name lives; it is imported when it is first asked for, so that the command line starts fast."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the keys are names


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reltask' has no attribute {name!r}")
    return getattr(import_module(f"reltask.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
