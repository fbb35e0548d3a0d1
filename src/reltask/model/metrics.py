"""Sums of the counts by minute and task."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from reltask.model.views import MetricView


class TaskStats(Struct, frozen=True, kw_only=True):
    """The runs of one task. Durations are in seconds."""

    task: str
    runs: int
    failed: int
    """Runs that failed, were lost or were abandoned."""
    seconds_mean: float
    """From the claim to the end."""
    seconds_most: float
    late_mean: float
    """From the due time to the claim."""
    late_most: float

    @property
    def failed_share(self) -> float:
        """Failures among all runs, 0 to 1."""
        return self.failed / self.runs


def sum_up(minutes: Iterable[MetricView]) -> list[TaskStats]:
    """One value per task, sorted by name."""
    by_task: dict[str, list[MetricView]] = {}
    for minute in minutes:
        by_task.setdefault(minute.task, []).append(minute)
    stats = [_of_task(task, counted) for task, counted in sorted(by_task.items())]
    return [one for one in stats if one.runs]


def _of_task(task: str, minutes: list[MetricView]) -> TaskStats:
    failed = sum(minute.failed for minute in minutes)
    runs = failed + sum(minute.succeeded for minute in minutes)
    return TaskStats(
        task=task,
        runs=runs,
        failed=failed,
        seconds_mean=sum(minute.seconds for minute in minutes) / max(runs, 1),
        seconds_most=max(minute.seconds_most for minute in minutes),
        late_mean=sum(minute.late for minute in minutes) / max(runs, 1),
        late_most=max(minute.late_most for minute in minutes),
    )
