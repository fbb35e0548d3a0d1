"""Every setting there is, with its default, its meaning and its .NET name. The documentation is made from this file."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Struct

from reltask.connection_url import safe_url
from reltask.errors import SettingsError
from reltask.lease import Pace


class About(Struct, frozen=True):
    """What a setting's type cannot say."""

    meaning: str
    dotnet: tuple[str, ...] = ()
    """Names in the section `TaskExecution` of an appsettings.json; a unit at the end may be any other unit."""
    least: int = 1
    """The smallest number allowed. For a duration: 0 allows none at all."""
    secret: bool = False
    """May hold a password: never shown as it is, never accepted from where others can read it."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker claims, renews and stops."""

    name: Annotated[
        str | None,
        About("Begins the worker's id; host, process and a unique part follow.", ("WorkerId", "WorkerName")),
    ] = None
    queues: Annotated[
        tuple[str, ...], About("The queues that this worker serves; none: those that its tasks name.", ("Queues",))
    ] = ()
    concurrency: Annotated[int, About("How many bodies run at the same time.", ("MaxConcurrency", "Concurrency"))] = 10
    queue_concurrency: Annotated[
        dict[str, int],
        About(
            "How many of them may come from one queue; a queue that is not named has no limit.", ("QueueConcurrency",)
        ),
    ] = {}
    poll: Annotated[
        timedelta,
        About(
            "The longest sleep. A worker wakes earlier at a due time, a lock's end or a signal.",
            ("PollingIntervalSeconds", "PollIntervalSeconds"),
        ),
    ] = timedelta(seconds=60)
    lock_timeout: Annotated[
        timedelta,
        About(
            "How long a claim lasts without a heartbeat, unless the task says otherwise. Then others may take the job.",
            ("LockTimeoutMinutes",),
        ),
    ] = timedelta(minutes=2)
    heartbeat: Annotated[
        timedelta | None,
        About(
            "How often claims are renewed. Auto: a quarter of the lock timeout, at most 30s.",
            ("HeartbeatIntervalSeconds",),
        ),
    ] = None
    beat_timeout: Annotated[
        timedelta | None,
        About(
            "How long one heartbeat may take. Auto: a 24th of the lock timeout, at most 5s.",
            ("HeartbeatTimeoutSeconds",),
        ),
    ] = None
    stop_grace: Annotated[
        timedelta | None,
        About(
            "How long a body that was told to stop may take to end. Auto: a 12th of the lock timeout, at most 10s.",
            ("StopGraceSeconds",),
            least=0,
        ),
    ] = None
    abandon_after: Annotated[
        int,
        About(
            "After so many failed heartbeats in a row the body is stopped and the job is given up.",
            ("MaxConsecutiveHeartbeatFailures", "MaxConsecutiveFailures"),
        ),
    ] = 3
    shutdown_grace: Annotated[
        timedelta,
        About("How long running bodies may go on after SIGTERM or Ctrl+C.", ("ShutdownTimeoutSeconds",), least=0),
    ] = timedelta(seconds=30)

    def pace(self, lock_timeout: timedelta | None = None) -> Pace:
        """The rhythm of a claim with this lock timeout (None: the setting), or a SettingsError.

        A task may have a lock too short for the worker's own heartbeat. Then the lengths follow from that lock.
        """
        pace = Pace.of(
            lock_timeout or self.lock_timeout,
            heartbeat=self.heartbeat,
            beat_timeout=self.beat_timeout,
            stop_grace=self.stop_grace,
            abandon_after=self.abandon_after,
        )
        if lock_timeout is not None and pace.fault():
            pace = Pace.of(lock_timeout, abandon_after=self.abandon_after)
        if fault := pace.fault():
            raise SettingsError(f"The settings of the worker do not fit together: {fault}")
        return pace


class DatabaseSettings(Struct, frozen=True, kw_only=True):
    """Which database, and how patiently."""

    url: Annotated[
        str | None,
        About("`sqlite:///file.db`, `postgresql://host/database` or `mssql://host/database`.", secret=True),
    ] = None
    connect_timeout: Annotated[timedelta, About("How long connecting may take.", ("ConnectTimeoutSeconds",))] = (
        timedelta(seconds=10)
    )
    command_timeout: Annotated[timedelta, About("How long one statement may take.", ("CommandTimeoutSeconds",))] = (
        timedelta(seconds=30)
    )
    pool_size: Annotated[
        int, About("Connections per process, beside the one that heartbeats have for themselves.", ("MaxPoolSize",))
    ] = 4
    retry_attempts: Annotated[
        int,
        About(
            "How often a statement that certainly was not applied is sent again.",
            ("RetryAttempts", "MaxRetryAttempts"),
            least=0,
        ),
    ] = 4
    retry_first: Annotated[
        timedelta,
        About("The wait before the first of these; each later wait is twice as long.", ("RetryDelaySeconds",)),
    ] = timedelta(seconds=1)
    breaker_failures: Annotated[
        int, About("After so many failures in a row nothing is sent for a while.", ("CircuitBreakerFailures",))
    ] = 5
    breaker_reset: Annotated[
        timedelta, About("How long that while is; then one statement is tried.", ("CircuitBreakerResetSeconds",))
    ] = timedelta(seconds=30)

    def __repr__(self) -> str:
        """Without the password: settings end in logs and tracebacks."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["url"] = None if self.url is None else safe_url(self.url)
        return f"DatabaseSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class LimitSettings(Struct, frozen=True, kw_only=True):
    """How much one job may store."""

    arguments: Annotated[int, About("Bytes of a job's arguments, as JSON.", ("MaxArgumentBytes",))] = 1_000_000
    result: Annotated[int, About("Bytes of a run's result, as JSON.", ("MaxResultBytes",))] = 1_000_000
    traceback: Annotated[int, About("Characters kept of a failed run's traceback.", ("MaxTracebackCharacters",))] = (
        20_000
    )


class LogSettings(Struct, frozen=True, kw_only=True):
    """What the command line programs log, and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], About("The least important lines that are written.")
    ] = "info"
    format: Annotated[Literal["auto", "text", "json"], About("Auto: text on a terminal, otherwise JSON lines.")] = (
        "auto"
    )


class SampleSettings(Struct, frozen=True, kw_only=True):
    """The sample task."""

    task_duration: Annotated[
        timedelta, About("How long the sample task pretends to work.", ("TaskDurationSeconds",), least=0)
    ] = timedelta(seconds=5)


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of one process."""

    database: DatabaseSettings = DatabaseSettings()
    worker: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    sample: SampleSettings = SampleSettings()
