"""Metrics for Prometheus (extra `metrics`).

    each worker     --metrics 127.0.0.1:9090     counters and histograms of its own runs, from its events
    one exporter    reltask exporter, or the     gauges of what the database knows, from one cached read: with one
                    dashboard's /metrics         place that reports them, N workers do not sum to N times the truth

A label is a task, a queue, an outcome, a kind of step or a state: their number is small and known. Never a job, a key,
a worker, an error or the name of a step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from uuid import UUID

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reltask import events
from reltask.errors import ReltaskError, UsageError
from reltask.model.overview import Overview, total

DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
DELAYS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
CACHED = 5.0
"""Seconds for which a read of the database serves all scrapes."""


class WorkerMetrics:
    """Counts a worker's runs: a subscriber of its events."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        labels, place = ("task", "queue", "outcome"), ("task", "queue")
        self._runs = self._made(Counter, "reltask_runs", "Runs that have ended, by outcome.", labels)
        self._seconds = Histogram(
            "reltask_run_duration_seconds",
            "From the claim to the recorded end of a run.",
            place,
            registry=self.registry,
            buckets=DURATIONS,
        )
        self._delays = Histogram(
            "reltask_run_delay_seconds",
            "From the due time of a slot to its claim.",
            place,
            registry=self.registry,
            buckets=DELAYS,
        )
        self._steps = self._made(Counter, "reltask_steps", "Steps of durable functions, recorded.", ("task", "kind"))
        self._beats = self._made(Counter, "reltask_heartbeat_failures", "Heartbeats that the database did not answer.")
        self._refused = self._made(
            Counter, "reltask_late_writes_refused", "Outcomes that came after their run had lost its lock."
        )
        self._running = Gauge("reltask_running", "Bodies that run in this worker.", ("queue",), registry=self.registry)
        self._started: dict[tuple[UUID, int], str] = {}
        self._lock = threading.Lock()

    def _made(self, kind: type[Counter], name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return kind(name, text, labels, registry=self.registry)

    def __call__(self, event: events.Event) -> None:
        """Count one event."""
        match event:
            case events.RunStarted():
                self._delays.labels(event.task, event.queue).observe(event.late)
                with self._lock:
                    self._started[event.job_id, event.fence] = event.queue
                self._running.labels(event.queue).inc()
            case events.RunSucceeded():
                self._ended(event, "succeeded", event.seconds)
            case events.RunFailed():
                self._ended(event, "dead" if event.dead else "failed", event.seconds)
            case events.RunEnded():
                self._ended(event, event.outcome, event.seconds)
            case events.StepsRecorded():
                for kind in event.kinds:
                    self._steps.labels(event.task, kind).inc()
            case events.HeartbeatFailed():
                self._beats.inc()
            case events.LateWriteRefused():
                self._refused.inc()
                self._no_longer(event)

    def _ended(self, event: events.RunEvent, outcome: str, seconds: float) -> None:
        self._runs.labels(event.task, event.queue, outcome).inc()
        self._seconds.labels(event.task, event.queue).observe(seconds)
        self._no_longer(event)

    def _no_longer(self, event: events.RunEvent) -> None:
        with self._lock:
            queue = self._started.pop((event.job_id, event.fence), None)
        if queue is not None:  # a slot that was skipped ends without a body
            self._running.labels(queue).dec()


class DatabaseMetrics(Collector):
    """What the database knows: read when Prometheus asks, and kept for a few seconds."""

    def __init__(self, read: Callable[[], Overview], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: tuple[float, Overview] | None = None

    def describe(self) -> list[Metric]:
        """Nothing is read at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges; while the database does not answer only `reltask_up`, as 0. With a shard away it is 0, too."""
        up = GaugeMetricFamily("reltask_up", "Whether the database answered.")
        try:
            overview = self._overview()
        except ReltaskError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 0 if overview.away else 1)
        yield up
        yield from gauges(overview)

    def _overview(self) -> Overview:
        with self._lock:
            if self._cached is None or self._clock() - self._cached[0] >= CACHED:
                self._cached = self._clock(), self._read()
            return self._cached[1]


def gauges(overview: Overview) -> Iterator[Metric]:
    """The overview as gauges."""
    jobs = GaugeMetricFamily(
        "reltask_jobs", "Jobs by queue and state; counted up to 10 000 each.", labels=("queue", "state")
    )
    oldest = GaugeMetricFamily(
        "reltask_oldest_due_seconds",
        "How long the oldest due job of a queue has waited; 0: none is due.",
        labels=["queue"],
    )
    for queue in overview.queues:
        lanes = [lane for lane in overview.lanes if lane.queue == queue]
        counts = {
            "due": total(lane.due for lane in lanes).jobs,
            "later": total(lane.later for lane in lanes).jobs,
            "suspended": sum(lane.suspended for lane in lanes),
            "running": sum(group.jobs for group in overview.claimed if group.queue == queue),
            "paused": sum(group.jobs for group in overview.paused if group.queue == queue),
            "dead": sum(group.jobs for group in overview.dead if group.queue == queue),
        }
        for state, count in counts.items():
            jobs.add_metric([queue, state], count)
        oldest.add_metric([queue], overview.age(overview.oldest_due(queue)).total_seconds())
    yield jobs
    yield oldest
    dead = dict.fromkeys(
        sorted(overview.task_names), 0
    )  # also 0: growth from nothing is seen only beside a 0 before it
    dead |= _sums((group.task, group.jobs) for group in overview.dead)
    yield _by("reltask_dead_jobs", "Dead letters.", "task", dead)
    yield _by(
        "reltask_workers",
        "Workers.",
        "state",
        {state: overview.workers(state) for state in ("alive", "dead", "stopped")},
    )
    unserved = [lane for lane in overview.lanes if lane.due.jobs and not overview.serves(lane.queue, lane.task)]
    yield _by(
        "reltask_unserved_jobs",
        "Due jobs that no live worker takes.",
        "task",
        _sums((lane.task, lane.due.jobs) for lane in unserved),
    )
    yield _by(
        "reltask_schedule_last_success_timestamp_seconds",
        "When a slot of a recurring task was last completed.",
        "task",
        {one.task: one.last_run.timestamp() for one in overview.recurring if one.last_run is not None},
    )


def _by(name: str, text: str, label: str, values: dict[str, float] | dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _sums(pairs: Iterator[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, count in pairs:
        sums[name] = sums.get(name, 0) + count
    return sums


def write_overview(overview: Overview) -> bytes:
    """The gauges of one snapshot, in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(DatabaseMetrics(lambda: overview))
    return generate_latest(registry)


def serve(registry: CollectorRegistry, address: str) -> tuple[str, Callable[[], None]]:
    """Serve a registry at HOST:PORT, on a thread of its own; return the address, and what ends it."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not HOST:PORT.", remedy="Write 127.0.0.1:9090.")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise UsageError(
            f"Metrics cannot be served at {address}: {error.strerror}.", remedy="Choose another port."
        ) from None

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return f"http://{host}:{server.server_port}/metrics", close
