"""The demo's output: a live table if there is a terminal and rich is installed, otherwise lines."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from reltask.cli.demo.ledger import Succession, Summary
from reltask.cli.demo.processes import WorkerProcess, WorkerProcesses
from reltask.cli.demo.scenario import Snapshot, View
from reltask.cli.show import print_line
from reltask.model.escape import escape
from reltask.model.job import Outcome
from reltask.model.views import RunView

LINES = 12


def name_of(worker: str | None) -> str:
    """The first part of a worker's id."""
    return (worker or "no worker").partition("_")[0]


class Lines:
    """One line per event."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._known: set[int] = set()

    def say(self, text: str) -> None:
        """Write one line."""
        self.write(f"{time.monotonic() - self._began:5.1f} s  {text}")

    def show(self, seen: Snapshot, processes: WorkerProcesses) -> None:  # noqa: ARG002 - the live view shows the processes
        """Report the runs that have ended since the last call."""
        for run in sorted(seen.runs, key=lambda run: run.fence):
            if run.fence not in self._known:
                self._known.add(run.fence)
                self.say(_ended(run))

    def write(self, line: str) -> None:
        """Write a finished line."""
        print_line(line, err=True)


class Live(Lines):
    """A live table of the workers, with the last lines below it."""

    def __init__(self, live: Any) -> None:
        super().__init__()
        self._live = live
        self._lines: deque[str] = deque(maxlen=LINES)

    def show(self, seen: Snapshot, processes: WorkerProcesses) -> None:
        """Report the runs that have ended, and draw the table again."""
        from rich.console import Group  # noqa: PLC0415 - an extra
        from rich.table import Table  # noqa: PLC0415

        super().show(seen, processes)
        table = Table("worker", "process", "state", "holds", "last heartbeat", "slots done", box=None, pad_edge=False)
        for row in _rows(seen, processes):
            table.add_row(*row)
        self._live.update(Group(table, "", *self._lines))

    def write(self, line: str) -> None:
        self._lines.append(escape(line))


@contextmanager
def open_view() -> Iterator[View]:
    """The best view for this terminal."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.live import Live as RichLive  # noqa: PLC0415
    except ImportError:
        yield Lines()
        return
    if not sys.stderr.isatty():
        yield Lines()
        return
    with RichLive(console=Console(stderr=True, markup=False, highlight=False), auto_refresh=False) as live:
        yield Live(_Refreshing(live))


class _Refreshing:
    """Draws at each update, not on a thread of rich's own: updates are frequent enough."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def update(self, picture: object) -> None:
        self._live.update(picture, refresh=True)


def _rows(seen: Snapshot, processes: WorkerProcesses) -> Iterator[tuple[str, ...]]:
    done = Counter(name_of(run.worker) for run in seen.runs if run.outcome is Outcome.SUCCEEDED)
    heartbeats = {name_of(worker.id): worker.heartbeat_at for worker in seen.workers}
    for worker in processes:
        last = heartbeats.get(worker.name)
        if seen.job is not None and seen.job.heartbeat_at and name_of(seen.job.locked_by) == worker.name:
            last = seen.job.heartbeat_at
        age = "-" if last is None else f"{max(0.0, (seen.now - last).total_seconds()):.1f} s ago"
        yield worker.name, str(worker.process.pid), worker.state, _holds(seen, worker), age, str(done[worker.name])


def _holds(seen: Snapshot, worker: WorkerProcess) -> str:
    job = seen.job
    if job is None or name_of(job.locked_by) != worker.name:
        return "-"
    return f"slot {job.slot_no}, fence {job.fence}"


def _ended(run: RunView) -> str:
    who = name_of(run.worker)
    match run.outcome:
        case Outcome.SUCCEEDED:
            return f"slot {run.slot_no} completed by {who}"
        case Outcome.LOST:
            return f"slot {run.slot_no} reclaimed from {who}: its lock has expired"
        case Outcome.RELEASED:
            return f"slot {run.slot_no} released by {who}"
        case outcome:
            return f"slot {run.slot_no} {outcome} on {who}"


def summary_lines(summary: Summary) -> list[str]:
    """The summary as text."""
    return [
        "Result, from the ledger:",
        f"  slots completed  {summary.completed}",
        f"  duplicates       {summary.duplicates}",
        f"  lost             {summary.lost}",
        f"  takeover         {_passed_on(summary.takeover, 'after the lock had expired', 'after the kill')}",
        f"  hand-over        {_passed_on(summary.hand_over, 'after the release', 'after SIGTERM')}",
        f"  lateness         {_late(summary)}",
        "Every slot ended exactly once."
        if summary.is_good
        else "FAILED: a slot is missing or doubled, or a step failed.",
    ]


def _late(summary: Summary) -> str:
    waited = summary.takeover is not None and summary.latest_slot == summary.takeover.slot_no + 1
    why = ", which waited for the takeover" if waited else ""
    return (
        f"median {summary.lateness_p50:.3f} s, longest {summary.lateness_max:.3f} s (slot {summary.latest_slot}{why})"
    )


def _passed_on(passed: Succession | None, free: str, interrupted: str) -> str:
    if passed is None:
        return "did not happen"
    who = f"slot {passed.slot_no} from {name_of(passed.before)} to {name_of(passed.after)}"
    return f"{who}: {passed.seconds_after_free:.2f} s {free}, {passed.seconds_after_blow:.2f} s {interrupted}"
