"""The demo's steps: start three workers, kill one, start another, stop one, finish.

The demo reads the database a few times a second through the public API; the workers are ordinary workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from reltask.app import App
from reltask.cli.demo.ledger import Blow, Summary, summarise
from reltask.cli.demo.processes import WorkerProcess, WorkerProcesses
from reltask.model.views import JobView, RunView, WorkerView
from reltask.sample import TASK

READ_EVERY = 0.1
LONGEST = 50.0
"""The demo ends after this many seconds, even if a step has not finished."""
QUIET_SLOTS = 2
"""Slots to complete before each interruption."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """The database at one moment."""

    now: datetime
    job: JobView | None
    runs: list[RunView]
    workers: list[WorkerView]


class View(Protocol):
    """The demo's output."""

    def say(self, text: str) -> None:
        """Report what the demo does."""
        ...

    def show(self, seen: Snapshot, processes: WorkerProcesses) -> None:
        """Show the current state."""
        ...


class OutOfTimeError(Exception):
    """The demo has taken longer than LONGEST."""


class Scenario:
    """Runs the steps."""

    def __init__(self, app: App, processes: WorkerProcesses, view: View, *, seconds: float) -> None:
        self._app = app
        self._processes = processes
        self._view = view
        self._began = time.monotonic()
        self._seconds = seconds

    def run(self) -> Summary:
        """Run all steps, then read the ledger."""
        killed = stopped = None
        try:
            self._start_workers()
            killed = self._kill_one()
            stopped = self._interrupt(
                WorkerProcess.stop, "{name} holds slot {slot}: SIGTERM. It releases the slot before it ends."
            )
            self._wait_for_slots(QUIET_SLOTS)
            self._view.say("No more interruptions; the workers continue.")
            self._wait(lambda _: self._elapsed() >= self._seconds)
        except OutOfTimeError:
            self._view.say(f"A step did not finish within {LONGEST:g} s; this is the result so far.")
        self._processes.stop_all()
        seen = self._read()
        return summarise(seen.job, seen.runs, killed=killed, stopped=stopped)

    def _read(self) -> Snapshot:
        jobs = self._app.jobs_sync(task=TASK, limit=1)
        return Snapshot(
            now=self._app.status_sync().now,
            job=jobs[0] if jobs else None,
            runs=self._app.runs_sync(task=TASK, limit=1_000),
            workers=self._app.workers_sync(),
        )

    def _start_workers(self) -> None:
        self._view.say("Three workers start on one SQLite file.")
        for _ in range(3):
            self._processes.start()
        self._wait(lambda seen: sum(worker.state == "alive" for worker in seen.workers) == len(self._processes))
        self._wait_for_slots(QUIET_SLOTS)

    def _kill_one(self) -> Blow:
        killed = self._interrupt(
            WorkerProcess.kill, "{name} holds slot {slot}: kill -9. Its lock must expire before others may continue."
        )
        self._wait_for_slots(1)
        self._view.say(f"{self._processes.start().name} starts in its place.")
        self._wait_for_slots(QUIET_SLOTS)
        return killed

    def _interrupt(self, how: Callable[[WorkerProcess], None], text: str) -> Blow:
        """Wait until a worker is in the middle of a task, and kill or stop it."""
        before, job = self._wait_for_running_job()
        worker = self._processes.find(job.locked_by or "")
        assert worker is not None  # no other worker uses this file
        how(worker)
        self._view.say(text.format(name=worker.name, slot=job.slot_no))
        after = self._read().job  # a last heartbeat may have arrived before the signal
        ends_at = after.lock_expires_at if after is not None and after.fence == job.fence else job.lock_expires_at
        return Blow(
            worker=job.locked_by or "",
            slot_no=job.slot_no,
            fence=job.fence,
            struck_at=before.now,
            lock_ends_at=ends_at,
        )

    def _wait_for_running_job(self) -> tuple[Snapshot, JobView]:
        """A claimed job whose body has reported progress: it has begun and has not ended."""
        while True:
            seen = self._wait(lambda seen: seen.job is not None and seen.job.locked_by is not None)
            if seen.job is not None and seen.job.progress:
                return seen, seen.job

    def _wait_for_slots(self, more: int) -> None:
        """Wait until this many more slots are completed."""
        slot = self._read().job
        goal = (slot.slot_no if slot else 1) + more
        self._wait(lambda seen: seen.job is not None and seen.job.slot_no >= goal)

    def _wait(self, enough: Callable[[Snapshot], bool]) -> Snapshot:
        while True:
            seen = self._read()
            self._view.show(seen, self._processes)
            if enough(seen):
                return seen
            if self._elapsed() > LONGEST:
                raise OutOfTimeError
            time.sleep(READ_EVERY)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
