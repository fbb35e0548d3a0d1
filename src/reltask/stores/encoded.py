"""A store whose payloads are encoded by the app's codec: `App(codec=…)`.

    producer, worker ──► EncodedStore ──► the store ──► database
         plain JSON        codec           encoded

It stands at the seam, so that no payload passes it by, and an app without a codec pays nothing.
Verbs without payloads go to the store as they are.

A payload that cannot be decoded is left as it is stored where it is one of many, as in a claim; its
own run then fails (`refuse_encoded`). Steps and signals of one run raise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from reltask.model.codec import Payloads
from reltask.model.durable import NewSignal, Recording, SignalView, StepView, Waits
from reltask.model.job import ClaimAnswer, ClaimRequest, Completion, Declared, Hold, NewJob, Settled
from reltask.model.screens import ListedJob, ListedState, Page, Payload
from reltask.model.views import JobEnd, JobView, RunView
from reltask.stores.store import Borrowed, Store, Transaction

S = TypeVar("S", bound=Struct)


def encoded(store: Store, payloads: Payloads) -> Store:
    """The store behind a codec."""
    return cast("Store", EncodedStore(store, payloads))


class _Encoding:
    """What a store and a transaction have in common."""

    def __init__(self, inner: Any, payloads: Payloads) -> None:
        self._inner = inner
        self._payloads = payloads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _encoded(self, value: S, *fields: str) -> S:
        texts = {name: getattr(value, name) for name in fields}
        return replace(value, **{name: self._payloads.encode(text) for name, text in texts.items() if text is not None})

    def _decoded(self, value: S, *fields: str) -> S:
        """Each payload that can be decoded."""
        return replace(value, **{name: self._payloads.decoded_or_kept(getattr(value, name)) for name in fields})

    def _surely_decoded(self, value: S) -> S:
        """UnreadablePayload if its value cannot be decoded."""
        text = getattr(value, "value")  # noqa: B009 - of any of several types
        return value if text is None else replace(value, value=self._payloads.decode(text))

    def _job(self, job: NewJob) -> NewJob:
        return self._encoded(job, "args", "headers")

    async def replace_job(self, job: NewJob) -> UUID | None:
        replaced: UUID | None = await self._inner.replace_job(self._job(job))
        return replaced

    def _completion(self, completion: Completion) -> Completion:
        if completion.result is None and completion.args is None:
            return completion
        return self._encoded(completion, "result", "args")

    def _recording(self, recording: Recording) -> Recording:
        return replace(recording, steps=tuple(self._encoded(step, "value") for step in recording.steps))

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        sent: dict[str, UUID] = await self._inner.send_signals([self._encoded(one, "value") for one in signals])
        return sent


class EncodedTransaction(_Encoding):
    """An open transaction behind a codec."""

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        inserted: set[UUID] = await self._inner.enqueue_jobs([self._job(job) for job in jobs])
        return inserted

    async def enqueue_unique(self, jobs: Sequence[NewJob]) -> set[UUID]:
        inserted: set[UUID] = await self._inner.enqueue_unique([self._job(job) for job in jobs])
        return inserted

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        won: bool = await self._inner.complete_job(worker, self._completion(completion))
        return won

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        won: bool = await self._inner.record_steps(worker, self._recording(recording))
        return won


class EncodedBorrowed:
    """The user's own connection behind a codec."""

    def __init__(self, inner: Borrowed, payloads: Payloads) -> None:
        self._inner = inner
        self._payloads = payloads

    @property
    def is_async(self) -> bool:
        return self._inner.is_async

    async def join(self) -> Transaction:
        return cast("Transaction", EncodedTransaction(await self._inner.join(), self._payloads))

    @asynccontextmanager
    async def transaction(self, *, timeout: timedelta) -> AsyncIterator[Transaction]:
        async with self._inner.transaction(timeout=timeout) as inner:
            yield cast("Transaction", EncodedTransaction(inner, self._payloads))


class EncodedStore(_Encoding):
    """A store behind a codec."""

    def dedicated(self, *, timeout: timedelta, inline: bool = True) -> Store:
        return encoded(self._inner.dedicated(timeout=timeout, inline=inline), self._payloads)

    def borrow(self, connection: object) -> Borrowed:
        return EncodedBorrowed(self._inner.borrow(connection), self._payloads)

    @asynccontextmanager
    async def transaction(self, *, timeout: timedelta) -> AsyncIterator[Transaction]:
        opening: AbstractAsyncContextManager[Transaction] = self._inner.transaction(timeout=timeout)
        async with opening as inner:
            yield cast("Transaction", EncodedTransaction(inner, self._payloads))

    # Writing

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        inserted: set[UUID] = await self._inner.enqueue_jobs([self._job(job) for job in jobs], again=again)
        return inserted

    async def enqueue_unique(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        inserted: set[UUID] = await self._inner.enqueue_unique([self._job(job) for job in jobs], again=again)
        return inserted

    async def declare_job(
        self, job: NewJob, *, seen: Declared, worker: str | None = None, fence: int | None = None
    ) -> bool:
        won: bool = await self._inner.declare_job(self._job(job), seen=seen, worker=worker, fence=fence)
        return won

    async def complete_jobs(
        self, worker: str, completions: Sequence[Completion], *, wait: bool = False
    ) -> list[Settled]:
        coded = [self._completion(completion) for completion in completions]
        settled: list[Settled] = await self._inner.complete_jobs(worker, coded, wait=wait)
        return settled

    async def record_progress(self, worker: str, hold: Hold, progress: str) -> bool:
        won: bool = await self._inner.record_progress(worker, hold, self._payloads.encode(progress))
        return won

    async def record_steps(self, worker: str, recordings: Sequence[Recording], *, wait: bool = False) -> list[Settled]:
        coded = [self._recording(recording) for recording in recordings]
        settled: list[Settled] = await self._inner.record_steps(worker, coded, wait=wait)
        return settled

    # Reading

    async def claim_jobs(self, request: ClaimRequest) -> ClaimAnswer:
        answer: ClaimAnswer = await self._inner.claim_jobs(request)
        return replace(answer, claims=[self._decoded(one, "args", "headers", "progress") for one in answer.claims])

    async def claim_limited(self, request: ClaimRequest) -> ClaimAnswer:
        answer: ClaimAnswer = await self._inner.claim_limited(request)
        return replace(answer, claims=[self._decoded(one, "args", "headers", "progress") for one in answer.claims])

    async def read_steps(self, job_id: UUID, slot_no: int | None = None) -> list[StepView]:
        return [self._surely_decoded(step) for step in await self._inner.read_steps(job_id, slot_no)]

    async def read_waits(self, job_id: UUID, slot_no: int) -> Waits | None:
        waits: Waits | None = await self._inner.read_waits(job_id, slot_no)
        if waits is None:
            return None
        signals = [self._surely_decoded(signal) for signal in waits.signals]
        return replace(waits, signals=signals, ends=[self._surely_decoded(end) for end in waits.ends])

    async def read_results(self, job_ids: Sequence[UUID]) -> list[JobEnd]:
        return [self._decoded(end, "result") for end in await self._inner.read_results(job_ids)]

    async def read_job(self, job_id: UUID) -> JobView | None:
        view: JobView | None = await self._inner.read_job(job_id)
        return None if view is None else self._decoded(view, "progress")

    async def read_payload(self, job_id: UUID) -> Payload | None:
        payload: Payload | None = await self._inner.read_payload(job_id)
        return None if payload is None else self._decoded(payload, "args", "headers")

    async def page_jobs(self, state: ListedState, **filters: Any) -> Page[ListedJob]:
        page: Page[ListedJob] = await self._inner.page_jobs(state, **filters)
        return replace(page, rows=[replace(row, job=self._decoded(row.job, "progress")) for row in page.rows])

    async def find_jobs(self, key: str, **filters: Any) -> list[JobView]:
        return [self._decoded(view, "progress") for view in await self._inner.find_jobs(key, **filters)]

    async def list_schedules(self, **filters: Any) -> list[JobView]:
        return [self._decoded(view, "progress") for view in await self._inner.list_schedules(**filters)]

    async def list_jobs(self, **filters: Any) -> list[JobView]:
        return [self._decoded(view, "progress") for view in await self._inner.list_jobs(**filters)]

    async def list_runs(self, **filters: Any) -> list[RunView]:
        return [self._decoded(run, "result") for run in await self._inner.list_runs(**filters)]

    async def list_signals(self, job_id: UUID) -> list[SignalView]:
        return [self._decoded(signal, "value") for signal in await self._inner.list_signals(job_id)]
