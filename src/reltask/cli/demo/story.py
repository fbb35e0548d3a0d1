"""The plot: three workers, a killing, a takeover, a newcomer, a resignation, a hand-over, an end.

The story is told by looking at the database through the same verbs that everybody has, a few times a second; the
workers know nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from reltask.app import App
from reltask.cli.demo.crew import Crew, Member
from reltask.cli.demo.ledger import Blow, Summary, summarise
from reltask.model.views import JobView, RunView, WorkerView
from reltask.sample import TASK

LOOK_EVERY = 0.1
LONGEST = 50.0
"""The story ends after this many seconds, whatever has or has not happened."""
QUIET_SLOTS = 2
"""Slots to see completed before each blow."""


class Seen(Struct, frozen=True, kw_only=True):
    """The database at one moment."""

    now: datetime
    job: JobView | None
    runs: list[RunView]
    workers: list[WorkerView]


class View(Protocol):
    """Where the story is shown."""

    def say(self, text: str) -> None:
        """Tell what happens."""
        ...

    def show(self, seen: Seen, crew: Crew) -> None:
        """Show how things stand."""
        ...


class TooLate(Exception):
    """The story has used up its time."""


class Story:
    """Plays it."""

    def __init__(self, app: App, crew: Crew, view: View, *, seconds: float) -> None:
        self._app = app
        self._crew = crew
        self._view = view
        self._began = time.monotonic()
        self._seconds = seconds

    def play(self) -> Summary:
        """All scenes, then the ledger."""
        killed = stopped = None
        try:
            self._open()
            killed = self._scene_of_the_killing()
            stopped = self._scene_of_the_hand_over()
            self._view.say("The rest is routine.")
            self._wait(lambda _: self._elapsed() >= self._seconds)
        except TooLate:
            self._view.say("That took too long; here is what happened so far.")
        self._crew.disband()
        seen = self.look()
        return summarise(seen.job, seen.runs, killed=killed, stopped=stopped)

    def look(self) -> Seen:
        """Read how things stand, with the verbs that operators use."""
        jobs = self._app.jobs_sync(task=TASK, limit=1)
        return Seen(
            now=self._app.status_sync().now,
            job=jobs[0] if jobs else None,
            runs=self._app.runs_sync(task=TASK, limit=1_000),
            workers=self._app.workers_sync(),
        )

    def _open(self) -> None:
        self._view.say("Three workers start on one SQLite file.")
        for _ in range(3):
            self._crew.hire()
        self._wait(lambda seen: sum(worker.state == "alive" for worker in seen.workers) == len(self._crew.members))
        self._wait_for_slots(QUIET_SLOTS)

    def _scene_of_the_killing(self) -> Blow:
        blow = self._strike(
            Member.kill, "{name} holds slot {slot}: kill -9. Its lock has to end before others may go on."
        )
        self._wait_for_slots(1)
        newcomer = self._crew.hire()
        self._view.say(f"{newcomer.name} starts in its place.")
        self._wait_for_slots(QUIET_SLOTS)
        return blow

    def _scene_of_the_hand_over(self) -> Blow:
        blow = self._strike(Member.stop, "{name} holds slot {slot}: SIGTERM. It gives the slot back before it ends.")
        self._wait_for_slots(QUIET_SLOTS)
        return blow

    def _strike(self, how: Callable[[Member], None], text: str) -> Blow:
        """Wait until a worker is in the middle of a task, and strike it."""
        before, job = self._wait_for_victim()
        member = self._crew.find(job.locked_by or "")
        assert member is not None  # nobody else works on this file
        how(member)
        self._view.say(text.format(name=member.name, slot=job.slot_no))
        after = self.look().job  # a last heartbeat may have come in before the blow
        ends_at = after.lock_expires_at if after is not None and after.fence == job.fence else job.lock_expires_at
        return Blow(
            worker=job.locked_by or "",
            slot_no=job.slot_no,
            fence=job.fence,
            struck_at=before.now,
            lock_ends_at=ends_at,
        )

    def _wait_for_victim(self) -> tuple[Seen, JobView]:
        """A claimed job whose body has told of its first progress: it is neither beginning nor ending."""
        while True:
            seen = self._wait(lambda seen: seen.job is not None and seen.job.locked_by is not None)
            if seen.job is not None and seen.job.progress:
                return seen, seen.job

    def _wait_for_slots(self, more: int) -> None:
        """Let so many more slots be completed."""
        slot = self.look().job
        goal = (slot.slot_no if slot else 1) + more
        self._wait(lambda seen: seen.job is not None and seen.job.slot_no >= goal)

    def _wait(self, enough: Callable[[Seen], bool]) -> Seen:
        while True:
            seen = self.look()
            self._view.show(seen, self._crew)
            if enough(seen):
                return seen
            if self._elapsed() > LONGEST:
                raise TooLate
            time.sleep(LOOK_EVERY)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
