"""Every error that reltask raises, in one tree.

ReltaskError                      has a stable code, a message and a remedy
├── ConfigurationError            a setting, a declaration or a call that cannot be right
│   ├── SettingsError             ... in a file, the environment or on the command line
│   ├── DeclarationError          ... in a decorator or a schedule
│   └── UsageError                ... in how the API is called
├── ArgumentsError                arguments that do not fit the task, or cannot be stored
├── UnreadablePayload             a stored payload that the app's codec cannot decode
├── UnknownTask                   no task of that name is registered
├── UnknownJob                    no job with that id
├── SchemaError                   the database's tables are missing, too old or too new
├── MissingExtra                  a driver or front end is not installed
├── DatabaseError                 what the database answered, classified once by the adapter
│   ├── TransientError            certainly not applied; the same statement may be sent again
│   │   └── CircuitOpen           not even sent: the breaker is open
│   ├── ConflictError             a constraint refused it
│   ├── AmbiguousError            the answer was lost: it may or may not have been applied
│   └── PermanentError            sending it again would change nothing
│       └── AccessRefused         … until login, permissions or disk space are fixed
├── LockLost                      this run no longer holds its claim; its writes are refused
├── StepFailed                    a step of a durable function raised
├── WaitTimeout                   the signal did not come in time
├── ChildFailed                   a child of a durable function died or was cancelled
├── JobEnded                      the job has ended, or never existed: it takes no signals
├── JobFailed                     a job whose result was awaited is dead
├── JobCancelled                  … was cancelled or discarded
├── ResultGone                    … has ended, and the ledger no longer has its result
├── LeaseTaken                    another process holds the lease, and the wait is over
└── LeaseLost                     this term of the lease is over; its guarded writes are refused

TaskSignal                        raised *by* a task to choose its outcome; not an error
├── Retry                         count the attempt and try again after a delay
├── Snooze                        not now: run this slot again later, without counting the attempt
├── Cancel                        end this slot without a result
├── Again                         end this slot, and start the next at once with other arguments
└── Stopped                       raised *into* a body that was asked to stop; let it propagate
"""

from __future__ import annotations

from datetime import timedelta

from reltask.model.duration import Duration, parse_duration


class ReltaskError(Exception):
    """The root of the tree. `code` is stable and is the anchor in docs/errors.md."""

    code = "reltask-error"
    remedy = ""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        if remedy:
            self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class ConfigurationError(ReltaskError):
    """Something that the user wrote cannot be right."""

    code = "configuration"


class SettingsError(ConfigurationError):
    """A setting in a file, the environment or on the command line."""

    code = "settings"


class DeclarationError(ConfigurationError):
    """A decorator's or a schedule's arguments."""

    code = "declaration"


class UsageError(ConfigurationError):
    """The API called in a way that cannot work."""

    code = "usage"


class ArgumentsError(ReltaskError):
    """Arguments that do not fit the task's parameters, or cannot be stored as JSON."""

    code = "arguments"


class UnreadablePayload(ReltaskError):
    """A stored payload that the app's codec cannot decode, or that was encoded by one that the app has not."""

    code = "unreadable-payload"
    remedy = "Give App(codec=…) the key that it was encoded with."


class UnknownTask(ReltaskError):
    """No task of that name is registered with the app."""

    code = "unknown-task"


class UnknownJob(ReltaskError):
    """No job with that id."""

    code = "unknown-job"


class SchemaError(ReltaskError):
    """reltask's tables are missing, or of a version that this reltask cannot use."""

    code = "schema"


class MissingExtra(ReltaskError):
    """A package that this feature needs is not installed."""

    code = "missing-extra"


class DatabaseError(ReltaskError):
    """What the database answered. Adapters classify driver errors once, here."""

    code = "database"


class TransientError(DatabaseError):
    """The statement was certainly not applied; it may be sent again."""

    code = "database-transient"


class CircuitOpen(TransientError):
    """The breaker is open: the statement was not even sent."""

    code = "database-circuit-open"


class ConflictError(DatabaseError):
    """A constraint refused the statement."""

    code = "database-conflict"


class AmbiguousError(DatabaseError):
    """The answer was lost: the statement may or may not have been applied."""

    code = "database-ambiguous"


class PermanentError(DatabaseError):
    """Sending the statement again would change nothing."""

    code = "database-permanent"


class AccessRefused(PermanentError):
    """The database refuses the login or the statement, whatever its values. An administrator may be fixing that."""


class LockLost(ReltaskError):
    """This run no longer holds its claim: the body must stop, and its writes are refused."""

    code = "lock-lost"


class StepFailed(ReltaskError):
    """A step of a durable function raised: the first time with the original as its cause, at replays without."""

    code = "step-failed"

    def __init__(self, step: str, kind: str, error: str) -> None:
        super().__init__(f"Step {step!r} failed: {kind}: {error}")
        self.step = step
        self.kind = kind
        """The name of the exception's class."""
        self.error = error
        """Its message."""


class WaitTimeout(ReltaskError):
    """The signal that a durable function waited for did not come in time."""

    code = "wait-timeout"


class ChildFailed(ReltaskError):
    """One or more children of a durable function died, were cancelled or discarded."""

    code = "child-failed"

    def __init__(self, message: str, *, outcomes: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.outcomes = outcomes
        """In the order of the calls: what each child returned, or the ChildFailed of one that did not."""


class JobEnded(ReltaskError):
    """The job has ended, or never existed: nothing was stored."""

    code = "job-ended"


class JobFailed(ReltaskError):
    """The job whose result was awaited is dead; the message has its last error."""

    code = "job-failed"


class JobCancelled(ReltaskError):
    """The job whose result was awaited was cancelled or discarded."""

    code = "job-cancelled"


class ResultGone(ReltaskError):
    """The job whose result was awaited has ended, and the ledger no longer has its result."""

    code = "result-gone"


class LeaseTaken(ReltaskError):
    """Another process holds the lease, and the time that `wait` allows is over."""

    code = "lease-taken"


class LeaseLost(ReltaskError):
    """This term of the lease is over: its holder must stop, and its guarded writes are refused."""

    code = "lease-lost"


class TaskSignal(Exception):
    """Raised by a task body to choose how its run ends."""


class Retry(TaskSignal):
    """Count this attempt as failed and try again, after `delay` or the task's own backoff."""

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason or "retry requested")
        self.delay: timedelta | None = None if delay is None else parse_duration(delay, name="delay")


class Snooze(TaskSignal):
    """Not now: run this slot again after `delay`, without counting the attempt."""

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or "snoozed")
        self.delay: timedelta = parse_duration(delay, name="delay")


class Cancel(TaskSignal):
    """End this slot without a result: a one-off job is removed, a recurring one goes on."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "cancelled by the task")


class Again(TaskSignal):
    """End this slot, and start the job's next one at once: `raise Again(poll.call(cursor))`. For long loops."""

    def __init__(self, call: object) -> None:
        super().__init__("starts again with other arguments")
        self.call = call
        """A call of the same task."""


class Stopped(TaskSignal):
    """The worker asked this body to stop, because of a timeout or a shutdown; let it propagate."""
