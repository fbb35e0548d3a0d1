"""Scheduled and background tasks, each on one worker at a time, on the SQL database that you already have.

The names exported here, `reltask.events`, `reltask.testing` and `reltask.integrations` are the public interface:
docs/api.md lists them. Everything else is internal and may change in any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reltask.version import __version__ as __version__

if TYPE_CHECKING:
    from reltask.app import App as App
    from reltask.errors import AccessRefused as AccessRefused
    from reltask.errors import Again as Again
    from reltask.errors import AmbiguousError as AmbiguousError
    from reltask.errors import ArgumentsError as ArgumentsError
    from reltask.errors import Cancel as Cancel
    from reltask.errors import ChildFailed as ChildFailed
    from reltask.errors import CircuitOpen as CircuitOpen
    from reltask.errors import ConfigurationError as ConfigurationError
    from reltask.errors import ConflictError as ConflictError
    from reltask.errors import DatabaseError as DatabaseError
    from reltask.errors import DeclarationError as DeclarationError
    from reltask.errors import JobCancelled as JobCancelled
    from reltask.errors import JobEnded as JobEnded
    from reltask.errors import JobFailed as JobFailed
    from reltask.errors import LeaseLost as LeaseLost
    from reltask.errors import LeaseTaken as LeaseTaken
    from reltask.errors import LockLost as LockLost
    from reltask.errors import MissingExtra as MissingExtra
    from reltask.errors import PermanentError as PermanentError
    from reltask.errors import ReltaskError as ReltaskError
    from reltask.errors import ResultGone as ResultGone
    from reltask.errors import Retry as Retry
    from reltask.errors import SchemaError as SchemaError
    from reltask.errors import SettingsError as SettingsError
    from reltask.errors import Snooze as Snooze
    from reltask.errors import StepFailed as StepFailed
    from reltask.errors import Stopped as Stopped
    from reltask.errors import TransientError as TransientError
    from reltask.errors import UnknownJob as UnknownJob
    from reltask.errors import UnknownTask as UnknownTask
    from reltask.errors import UnreadablePayload as UnreadablePayload
    from reltask.errors import UsageError as UsageError
    from reltask.errors import WaitTimeout as WaitTimeout
    from reltask.leases.handle import Lease as Lease
    from reltask.model.backoff import Backoff as Backoff
    from reltask.model.codec import Codec as Codec
    from reltask.model.control import PauseKind as PauseKind
    from reltask.model.control import PauseView as PauseView
    from reltask.model.durable import ChildView as ChildView
    from reltask.model.durable import SignalView as SignalView
    from reltask.model.durable import StepKind as StepKind
    from reltask.model.durable import StepState as StepState
    from reltask.model.durable import StepView as StepView
    from reltask.model.hidden import Hidden as Hidden
    from reltask.model.job import Cancellation as Cancellation
    from reltask.model.job import Outcome as Outcome
    from reltask.model.job import State as State
    from reltask.model.lease import Term as Term
    from reltask.model.limit import Limit as Limit
    from reltask.model.limit import LimitKeyView as LimitKeyView
    from reltask.model.limit import LimitView as LimitView
    from reltask.model.metrics import TaskStats as TaskStats
    from reltask.model.overview import Overview as Overview
    from reltask.model.preview import ScheduleView as ScheduleView
    from reltask.model.views import JobView as JobView
    from reltask.model.views import LeaseView as LeaseView
    from reltask.model.views import RunView as RunView
    from reltask.model.views import ShardView as ShardView
    from reltask.model.views import StatusView as StatusView
    from reltask.model.views import WorkerView as WorkerView
    from reltask.producer.enqueue import Call as Call
    from reltask.producer.job import Job as Job
    from reltask.producer.signal import Signal as Signal
    from reltask.producer.task import Task as Task
    from reltask.producer.transaction import SyncTransaction as SyncTransaction
    from reltask.producer.transaction import TaskTransaction as TaskTransaction
    from reltask.worker.base_context import BaseContext as BaseContext
    from reltask.worker.base_context import Middleware as Middleware
    from reltask.worker.child import ProcessContext as ProcessContext
    from reltask.worker.context import Context as Context
    from reltask.worker.context import SyncContext as SyncContext
    from reltask.worker.step import Step as Step
    from reltask.worker.step import current_step as current_step

_HOMES = {
    "app": ["App"],
    "errors": [
        "AccessRefused",
        "Again",
        "AmbiguousError",
        "ArgumentsError",
        "Cancel",
        "ChildFailed",
        "CircuitOpen",
        "ConfigurationError",
        "ConflictError",
        "DatabaseError",
        "DeclarationError",
        "JobCancelled",
        "JobEnded",
        "JobFailed",
        "LeaseLost",
        "LeaseTaken",
        "LockLost",
        "MissingExtra",
        "PermanentError",
        "ReltaskError",
        "ResultGone",
        "Retry",
        "SchemaError",
        "SettingsError",
        "Snooze",
        "StepFailed",
        "Stopped",
        "TransientError",
        "UnknownJob",
        "UnknownTask",
        "UnreadablePayload",
        "UsageError",
        "WaitTimeout",
    ],
    "leases.handle": ["Lease"],
    "model.backoff": ["Backoff"],
    "model.codec": ["Codec"],
    "model.control": ["PauseKind", "PauseView"],
    "model.durable": ["ChildView", "SignalView", "StepKind", "StepState", "StepView"],
    "model.hidden": ["Hidden"],
    "model.job": ["Cancellation", "Outcome", "State"],
    "model.lease": ["Term"],
    "model.limit": ["Limit", "LimitKeyView", "LimitView"],
    "model.metrics": ["TaskStats"],
    "model.overview": ["Overview"],
    "model.preview": ["ScheduleView"],
    "model.views": ["JobView", "LeaseView", "RunView", "ShardView", "StatusView", "WorkerView"],
    "producer.enqueue": ["Call"],
    "producer.job": ["Job"],
    "producer.signal": ["Signal"],
    "producer.task": ["Task"],
    "producer.transaction": ["SyncTransaction", "TaskTransaction"],
    "worker.base_context": ["BaseContext", "Middleware"],
    "worker.child": ["ProcessContext"],
    "worker.context": ["Context", "SyncContext"],
    "worker.step": ["Step", "current_step"],
}
"""Where the public names live; each is imported when it is first asked for, so that the command line starts fast."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]  # noqa: PLE0604 - the keys are names


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'reltask' has no attribute {name!r}")
    return getattr(import_module(f"reltask.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
