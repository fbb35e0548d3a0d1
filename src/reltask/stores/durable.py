"""The part of the store interface that durable functions need: see `model/durable.py` for the idea."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from reltask.model.durable import ChildView, NewSignal, Recording, SignalView, StepView, Waits
from reltask.model.job import Settled, Suspension

BATCH = 1_000


class DurableTransaction(Protocol):
    """What happens inside a transaction: the step's record and the writes beside it are one commit."""

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        """Record these steps if owner and fence still match: the last statement before the commit.

        Waits for the job's row, and keeps it until the commit.
        """
        ...

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        """As the store's verb: the signals exist when the transaction is committed."""
        ...


class DurableStore(Protocol):
    """Steps, suspensions, signals and children."""

    async def record_steps(self, worker: str, recordings: Sequence[Recording], *, wait: bool = False) -> list[Settled]:
        """Record steps where owner and fence still match: rows inserted, or WAITING ones replaced; signals consumed.

        A step that is DONE or FAILED already stays as it is, so the same recording may be sent twice.
        Skips rows that another session has locked, as the settlements do; with `wait` it waits for them.
        """
        ...

    async def suspend_jobs(
        self, worker: str, suspensions: Sequence[Suspension], *, wait: bool = False
    ) -> list[Settled]:
        """End these runs where owner and fence still match: ledger row, lock cleared, attempt returned.

        The job is due at its wake time; at once, if `wake_seq` is no longer what the run has seen.
        Skips locked rows, as the settlements do; with `wait` it waits for them.
        """
        ...

    async def read_steps(self, job_id: UUID, slot_no: int | None = None) -> list[StepView]:
        """The recorded steps of a slot, in the order of their start; None: of the newest slot that has any."""
        ...

    async def read_waits(self, job_id: UUID, slot_no: int) -> Waits | None:
        """In one statement: the job's `wake_seq`, its signals not consumed yet, and the ends of its children.

        None: the job is gone, or in another slot.
        """
        ...

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        """Store signals for jobs that exist, with a mark each, and return the jobs that they went to by signal id.

        A signal whose id the slot has already is not stored again, and counts as sent. One that is
        missing from the answer has no job: it has ended, or never existed.
        """
        ...

    async def fold_marks(self, *, limit: int = BATCH) -> int:
        """Look at the jobs that marks name, remove those marks, and return their number.

        `wake_seq` + 1; children that have ended are subtracted from what their step waits for; due now,
        if the job is suspended and waits for this signal, or for no more children. A mark whose job's
        row is locked stays for later. Never waits.
        """
        ...

    async def forget_steps(self, job_id: UUID, name: str, *, and_after: bool = False) -> int:
        """Remove a step's record of the current slot of an unclaimed job, so that it runs again; return how many.

        With `and_after` also those that were started after it. The job becomes due now if it was suspended.
        0 also while children of these steps live: their ends would be taken for those of the new children.
        """
        ...

    async def list_signals(self, job_id: UUID) -> list[SignalView]:
        """The signals of a job, oldest first, consumed ones too."""
        ...

    async def list_children(self, job_id: UUID) -> list[ChildView]:
        """The children of a job, by step and place: those that have ended, and those that have not."""
        ...
