"""Every setting with its default, its meaning and its .NET name. docs/configuration.md is generated from this file."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Struct
from msgspec.structs import replace

from reltask.errors import SettingsError
from reltask.model.connection_url import safe_url
from reltask.model.pace import SHORTEST, Pace

LEASE_TTL = timedelta(seconds=10)


LARGEST = 2**31 - 1
"""The largest count that every database can store."""
LARGEST_TEXT = 16_000_000
"""The most bytes of a job's arguments, or of a result, that the tables accept."""


class About(Struct, frozen=True):
    """What the type of a setting does not say."""

    meaning: str
    dotnet: tuple[str, ...] = ()
    """Names in the section `TaskExecution` of an appsettings.json; a unit at the end may be any other unit."""
    least: int = 1
    """The smallest number allowed. For a duration: 0 allows a duration of zero."""
    most: int = 2**63 - 1
    """The largest number allowed."""
    shortest: timedelta = timedelta(0)
    """The shortest duration allowed."""
    secret: bool = False
    """It may hold a password: never shown unmasked, never accepted from a place that others can read."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker claims, renews and stops."""

    name: Annotated[
        str | None,
        About(
            "The first part of the worker's id; host, process id and a unique part follow.", ("WorkerId", "WorkerName")
        ),
    ] = None
    queues: Annotated[
        tuple[str, ...], About("The queues that this worker serves. Empty: the queues of its tasks.", ("Queues",))
    ] = ()
    concurrency: Annotated[
        int, About("How many jobs run at the same time.", ("MaxConcurrency", "Concurrency"), most=LARGEST)
    ] = 10
    queue_concurrency: Annotated[
        dict[str, int],
        About(
            "How many jobs of one queue run at the same time. A queue that is not named has no limit of its own.",
            ("QueueConcurrency",),
        ),
    ] = {}
    poll: Annotated[
        timedelta,
        About(
            "The longest sleep between two polls. A worker wakes earlier for a due job, an expired lock or a signal. "
            "With signals it sleeps half a second per idle worker if that is longer. Without signals the idle workers "
            "take turns, one every half second.",
            ("PollingIntervalSeconds", "PollIntervalSeconds"),
        ),
    ] = timedelta(seconds=60)
    lock_timeout: Annotated[
        timedelta,
        About(
            "How long a claim lasts without a heartbeat; then another worker may take the job. A task can set its own. "
            "At least 500ms.",
            ("LockTimeoutMinutes",),
            shortest=SHORTEST,
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
            "How long a body may take to end after it was asked to stop. "
            "Auto: a 12th of the lock timeout, at most 10s.",
            ("StopGraceSeconds",),
            least=0,
        ),
    ] = None
    abandon_after: Annotated[
        int,
        About(
            "After this many failed heartbeats in a row the body is stopped and the job is abandoned.",
            ("MaxConsecutiveHeartbeatFailures", "MaxConsecutiveFailures"),
        ),
    ] = 3
    shutdown_grace: Annotated[
        timedelta,
        About("How long running jobs may continue after SIGTERM or Ctrl+C.", ("ShutdownTimeoutSeconds",), least=0),
    ] = timedelta(seconds=30)

    def pace(self, lock_timeout: timedelta | None = None) -> Pace:
        """The heartbeat times of a claim with this lock timeout (None: the setting), or a SettingsError.

        If a task's own lock timeout is too short for the worker's heartbeat, the times are derived from that timeout.
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
    """The database, its timeouts and its retries."""

    url: Annotated[
        str | None,
        About("`sqlite:///file.db`, `postgresql://host/database` or `mssql://host/database`.", secret=True),
    ] = None
    schema: Annotated[
        str | None,
        About(
            "The schema of the tables; on SQLite the prefix of their names. `?schema=NAME` in the URL says the same. "
            "If not set: `reltask`."
        ),
    ] = None
    signals_url: Annotated[
        str | None,
        About(
            "PostgreSQL behind a pooler: a direct URL of the same database, for signals alone. "
            "Without it a worker with `?pgbouncer=true` gets none.",
            secret=True,
        ),
    ] = None
    connect_timeout: Annotated[timedelta, About("How long connecting may take.", ("ConnectTimeoutSeconds",))] = (
        timedelta(seconds=10)
    )
    command_timeout: Annotated[timedelta, About("How long one statement may take.", ("CommandTimeoutSeconds",))] = (
        timedelta(seconds=30)
    )
    pool_size: Annotated[
        int,
        About(
            "Connections per process, not counting the one for heartbeats."
            " At most half of them wait for locks of other sessions, so set at least 2.",
            ("MaxPoolSize",),
        ),
    ] = 4
    retry_attempts: Annotated[
        int,
        About(
            "How often a statement is sent again if it certainly was not applied.",
            ("RetryAttempts", "MaxRetryAttempts"),
            least=0,
        ),
    ] = 4
    retry_first: Annotated[
        timedelta,
        About("The wait before the first retry; each later wait is twice as long.", ("RetryDelaySeconds",)),
    ] = timedelta(seconds=1)
    breaker_failures: Annotated[
        int,
        About(
            "After this many failures in a row the circuit breaker opens: no call is sent.", ("CircuitBreakerFailures",)
        ),
    ] = 5
    breaker_reset: Annotated[
        timedelta,
        About("How long the circuit breaker stays open; then one call is tried.", ("CircuitBreakerResetSeconds",)),
    ] = timedelta(seconds=30)

    def __repr__(self) -> str:
        """Without the password: settings appear in logs and tracebacks."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("url", "signals_url"):
            shown[name] = None if shown[name] is None else safe_url(shown[name])
        return f"DatabaseSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class MaintenanceSettings(Struct, frozen=True, kw_only=True):
    """The maintenance that workers do beside running jobs, and which of them does it."""

    coordination: Annotated[
        Literal["lease", "everyone", "advisory", "stealing", "off"],
        About(
            "Which workers do it: the holder of a lease, every worker, the holder of an advisory lock, or all of them "
            "in batches. Off: this worker takes no part."
        ),
    ] = "lease"
    lease_ttl: Annotated[
        timedelta | None,
        About(
            "How long the lease lasts without a heartbeat. "
            "Auto: 10s; on SQLite, where each heartbeat wakes all workers, 1m."
        ),
    ] = None
    rotate_after: Annotated[
        timedelta, About("The longest time that one worker holds the lease; then it resigns. 0s: no limit.", least=0)
    ] = timedelta(0)
    max_stall: Annotated[
        timedelta, About("The holder resigns the lease when it has finished no due work for this long.")
    ] = timedelta(minutes=1)
    reclaim: Annotated[
        timedelta, About("How often expired locks are searched for. Each worker also does so when it knows of one.")
    ] = timedelta(seconds=30)
    dead_workers: Annotated[timedelta, About("How often workers that stopped reporting are marked as dead.")] = (
        timedelta(seconds=30)
    )
    roll_up: Annotated[timedelta, About("How often finished runs are counted by minute and task.")] = timedelta(
        seconds=60
    )
    prune: Annotated[timedelta, About("How often old runs, counts and workers are removed.")] = timedelta(seconds=60)
    keep_runs: Annotated[timedelta, About("How long the ledger keeps a run; at least an hour.")] = timedelta(days=7)
    keep_runs_count: Annotated[
        int, About("How many runs the ledger keeps; those of the last hour are always kept.")
    ] = 1_000_000
    keep_metrics: Annotated[timedelta, About("How long the counts by minute and task are kept.")] = timedelta(days=30)
    keep_workers: Annotated[timedelta, About("How long stopped and dead workers stay listed.")] = timedelta(days=1)

    def on(self, url: str) -> MaintenanceSettings:
        """These settings for this database, with `auto` resolved; SettingsError if the database lacks something."""
        is_sqlite = url.startswith("sqlite:")
        if is_sqlite and self.coordination == "advisory":
            raise SettingsError(
                "maintenance.coordination is advisory, but SQLite has no advisory locks.",
                remedy="On SQLite write lease (the default), everyone, stealing or off.",
            )
        ttl = self.lease_ttl or (timedelta(minutes=1) if is_sqlite else LEASE_TTL)
        return replace(self, lease_ttl=ttl)

    @property
    def shortest(self) -> timedelta:
        """The shortest of the intervals."""
        return min(self.reclaim, self.dead_workers, self.roll_up, self.prune)


class LimitSettings(Struct, frozen=True, kw_only=True):
    """How much one job may store."""

    arguments: Annotated[
        int,
        About(
            "Bytes of a job's arguments, as JSON. A worker fails a job that has more.",
            ("MaxArgumentBytes",),
            most=LARGEST_TEXT,
        ),
    ] = 1_000_000
    result: Annotated[int, About("Bytes of a run's result, as JSON.", ("MaxResultBytes",), most=LARGEST_TEXT)] = (
        1_000_000
    )
    headers: Annotated[int, About("Bytes of a job's headers, as JSON.", ("MaxHeaderBytes",), most=LARGEST_TEXT)] = (
        16_000
    )
    traceback: Annotated[
        int,
        About("Characters kept of a failed run's traceback.", ("MaxTracebackCharacters",), most=LARGEST_TEXT // 4),
    ] = 20_000


class HistorySettings(Struct, frozen=True, kw_only=True):
    """What the ledger keeps of jobs that have ended."""

    arguments: Annotated[
        Literal["on", "off"],
        About("Whether it keeps their arguments and headers, so that they can be run again. A task can set its own."),
    ] = "on"


class LogSettings(Struct, frozen=True, kw_only=True):
    """The log of the command line programs."""

    level: Annotated[Literal["debug", "info", "warning", "error"], About("The lowest level that is written.")] = "info"
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
    maintenance: MaintenanceSettings = MaintenanceSettings()
    limits: LimitSettings = LimitSettings()
    history: HistorySettings = HistorySettings()
    log: LogSettings = LogSettings()
    sample: SampleSettings = SampleSettings()
