"""The recorded steps of one run: read once, written in groups.

    ctx call ends ─► ┐
    ctx call ends ─► ├─ unsent ──► one Recording per run ──► recorder ──► one statement for all runs ──► answers
    ctx call ends ─► ┘    ▲                                                                               │
                          └────────────── calls that end meanwhile go with the next one ──────────────────┘

A call counts as recorded when the answer is there. A recording that is refused means that another
worker has the claim: the body is stopped.

A failure that a body may catch is kept aside. It is recorded with the first call that *begins* after
it was raised: that call shows that the body went on. If the body lets it through, nothing is
recorded, and the next attempt runs the step again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from reltask.errors import LockLost
from reltask.model.durable import Recording, StepRecord, StepState, StepView
from reltask.stores.store import Store
from reltask.worker.run import Run, StopReason

LOST = "another worker has the claim"
Record = Callable[[Recording, Callable[[bool], None]], None]
"""Writes a recording, and calls back with whether the claim still held."""


class Failure(Struct, frozen=True):
    """A failure that was raised into the body, and not recorded yet."""

    record: StepRecord
    order: int
    """The number of calls that had begun when it was raised."""


class Journal:
    """What the current slot has recorded, as one run reads and writes it."""

    def __init__(self, run: Run, store: Store, record: Record) -> None:
        self._run = run
        self._store = store
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, StepView | StepRecord] = {}
        self._loading: asyncio.Task[None] | None = None
        self._replayed: set[str] = set()
        self._unsent: list[StepRecord] = []
        self._progress = False
        self._waiting: list[asyncio.Future[None]] = []
        self._is_sending = False
        self._is_planned = False
        self._failures: list[Failure] = []
        self.begun = 0
        """How many calls have begun."""

    @property
    def replaying(self) -> bool:
        """Whether steps are left that an earlier run has recorded and this one has not asked for yet."""
        if self._run.claim.steps and self._loading is None:
            return True
        return any(name not in self._replayed for name, step in self._known.items() if isinstance(step, StepView))

    async def find(self, name: str) -> StepView | StepRecord | None:
        """The record of a step, or None. The first call reads all records of the slot, if there are any."""
        if self._run.claim.steps and self._loading is None:
            self._loading = self._loop.create_task(self._load())
        if self._loading is not None:
            await asyncio.shield(self._loading)
        self._replayed.add(name)
        return self._known.get(name)

    async def _load(self) -> None:
        claim = self._run.claim
        try:
            steps = await self._store.read_steps(claim.job_id, claim.slot_no)
        except BaseException:
            self._loading = None  # the next call asks again
            raise
        self._known = {**{step.name: step for step in steps}, **self._known}

    def never_asked(self) -> list[str]:
        """Recorded steps that this run has not asked for."""
        return sorted(name for name in self._known if name not in self._replayed)

    # Writing

    async def write(self, record: StepRecord, *, order: int, progress: bool = True) -> None:
        """Record a step, with the failures that were raised before this call began; return when it is recorded."""
        await self.write_all([record, *self._caught(order)], progress=progress)

    async def write_caught(self) -> None:
        """Record the failures that the body has caught, before it is suspended."""
        caught = self._caught(self.begun)
        if caught:
            await self.write_all(caught)

    async def write_all(self, records: Iterable[StepRecord], *, progress: bool = True) -> None:
        """Record steps; return when they are recorded, or raise LockLost."""
        self._unsent += records
        self._progress = self._progress or progress
        answered: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(answered)
        self._send_soon()
        await answered

    def fail(self, record: StepRecord) -> None:
        """Keep a failure aside, until a later call shows that the body has caught it."""
        self._failures.append(Failure(record, self.begun))

    def note(self, record: StepRecord) -> None:
        """Record this with the next call, if there is one: it only completes the picture."""
        self._failures.append(Failure(record, -1))

    def in_transaction(self, record: StepRecord, *, order: int) -> Recording:
        """What a transaction records as its last statement, with the failures that were caught before."""
        caught = [failure.record for failure in self._failures if failure.order < order]
        return Recording(hold=self._run.hold, steps=(record, *caught))

    def written(self, recording: Recording) -> None:
        """A recording has been committed: by the recorder, or by a transaction."""
        for step in recording.steps:
            self._known[step.name] = step
            self._replayed.add(step.name)
        recorded = {step.name for step in recording.steps}
        self._failures = [failure for failure in self._failures if failure.record.name not in recorded]

    def _caught(self, order: int) -> list[StepRecord]:
        caught = [failure.record for failure in self._failures if failure.order < order]
        self._failures = [failure for failure in self._failures if failure.order >= order]
        return caught

    def _send_soon(self) -> None:
        """Send in the next turn of the loop, together with all that is written in this one."""
        if not self._is_planned and not self._is_sending:
            self._is_planned = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_planned, self._is_sending = False, True
        recording = Recording(hold=self._run.hold, steps=tuple(self._unsent), progress=self._progress)
        waiting, self._waiting, self._unsent, self._progress = self._waiting, [], [], False

        def answered(accepted: bool) -> None:
            self._is_sending = False
            if accepted:
                self.written(recording)
            else:
                self._run.stop(StopReason.LOST, LOST)
            for one in waiting:
                if not one.done():
                    one.set_result(None) if accepted else one.set_exception(
                        LockLost(f"The step was not recorded: {LOST}.")
                    )
            if self._unsent:
                self._send_soon()

        self._record(recording, answered)


def is_final(step: StepView | StepRecord | None) -> bool:
    """Whether a step has ended: its record will not change."""
    return step is not None and step.state is not StepState.WAITING


def described(error: BaseException) -> str:
    """`Kind: message`, as a step's record holds it."""
    return f"{type(error).__name__}: {error}".replace("\x00", "\\x00")


def split_error(text: str | None) -> tuple[str, str]:
    """Kind and message of a recorded failure."""
    kind, _, message = (text or "").partition(": ")
    return kind, message


def fingerprint_source(function: Any) -> str:
    """The name by which a replay recognises a step's function."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
