"""The handle of a job: reads it, waits for its result, sends it signals, and operates on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload
from uuid import UUID, uuid4

from msgspec import Struct

from reltask.errors import (
    JobEnded,
    UnknownJob,
    UsageError,
)
from reltask.model.durable import ChildView, NewSignal, SignalView, StepView
from reltask.model.duration import Duration
from reltask.model.job import Cancellation
from reltask.model.keys import KeyHash
from reltask.model.screens import Payload
from reltask.model.settings import LimitSettings
from reltask.model.task import TaskDefinition
from reltask.model.views import JobView, RunView
from reltask.producer.cancel import cancel_job
from reltask.producer.client import Client, Place, Sender, refuse_no_loop, refuse_running_loop
from reltask.producer.keys import owners_of
from reltask.producer.portal import Operation
from reltask.producer.result import Results, in_task, returned, time_limit, too_late
from reltask.producer.shown import Shown
from reltask.producer.signal import Signal, check_name, signal_of
from reltask.producer.transaction import TaskTransaction
from reltask.stores.store import Store, Transaction

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
CHANGES = {
    "pause": "is not there, or is paused already, or is dead",
    "resume": "is not there, or is not paused, or is dead",
    "run_now": "is not there, or is running or dead",
    "retry": "is not there, or is not dead",
    "discard": "is not there, or is running",
}
"""What can be done to a job, and why it can fail."""
MAKE_DUE = ("resume", "run_now", "retry")


class Access(Struct, frozen=True):
    """How the handles of one app reach its database."""

    sender: Sender
    results: Results
    limits: Callable[[], LimitSettings]
    shown: Shown
    run_again: Callable[[Payload, Store], Coroutine[Any, Any, Job[Any]]]
    """Enqueues another job with what this one was given."""
    keys: KeyHash = KeyHash()
    """Makes keys from arguments."""

    @property
    def client(self) -> Client:
        return self.sender.client

    def job(self, job_id: UUID | None, task: TaskDefinition | None = None, key: str | None = None) -> Job[Any]:
        """The handle of a job that was enqueued at another time."""
        if job_id is not None and not isinstance(job_id, UUID):
            raise UsageError(f"A job's id is a UUID, not {type(job_id).__name__}.", remedy="Write: UUID(text)")
        return Job(self, job_id, None if task is None else task.name, key, task, created=False)


class Job(Struct, Generic[R_co], frozen=True, eq=False):
    """A job, by its id or by its task and key. R is what its task returns."""

    _access: Access
    _id: UUID | None
    task: str | None = None
    """None: this handle knows the job's id only."""
    key: str | None = None
    _definition: TaskDefinition | None = None
    created: bool = True
    """False: this call has not created the job, because it was there already or was only looked up."""
    _joined: bool = False
    """Whether it was enqueued in an open transaction: it exists once that is committed."""

    def __repr__(self) -> str:
        name = self._id or f"with key {self.key!r}"
        return f"<job {name} of {self.task}>" if self.task else f"<job {name}>"

    @property
    def id(self) -> UUID:
        """The job's id; UsageError for a handle made by key, which finds the id when it is used."""
        if self._id is None:
            raise UsageError("This handle knows its job by key.", remedy="Write: (await job.view()).id")
        return self._id

    # Reading

    def view(self) -> Coroutine[Any, Any, JobView | None]:
        """The job's row, or None once a one-off is done."""
        return self._access.client.run(self._view, name="view")

    def view_sync(self) -> JobView | None:
        """`view` for synchronous code."""
        return self._access.client.run_sync(self._view, name="view")

    def runs(self) -> Coroutine[Any, Any, list[RunView]]:
        """The job's runs that have ended, newest first."""
        return self._access.client.run(self._runs, name="runs")

    def runs_sync(self) -> list[RunView]:
        """`runs` for synchronous code."""
        return self._access.client.run_sync(self._runs, name="runs")

    def steps(self) -> Coroutine[Any, Any, list[StepView]]:
        """The steps that are recorded of its newest slot that has any, in the order of their start."""
        return self._access.client.run(self._steps, name="steps")

    def steps_sync(self) -> list[StepView]:
        """`steps` for synchronous code."""
        return self._access.client.run_sync(self._steps, name="steps")

    def signals(self) -> Coroutine[Any, Any, list[SignalView]]:
        """The signals that were sent to it, oldest first; `consumed_by` is None for those that wait."""
        return self._access.client.run(self._signals, name="signals")

    def signals_sync(self) -> list[SignalView]:
        """`signals` for synchronous code."""
        return self._access.client.run_sync(self._signals, name="signals")

    def children(self) -> Coroutine[Any, Any, list[ChildView]]:
        """The jobs that its steps wait for, or have waited for."""
        return self._access.client.run(self._children, name="children")

    def children_sync(self) -> list[ChildView]:
        """`children` for synchronous code."""
        return self._access.client.run_sync(self._children, name="children")

    def arguments(self) -> Coroutine[Any, Any, dict[str, Any] | None]:
        """What it was given, as it is shown: `Hidden` values are masked. None: it is gone, and nothing was kept."""
        return self._access.client.run(self._arguments, name="arguments")

    def arguments_sync(self) -> dict[str, Any] | None:
        """`arguments` for synchronous code."""
        return self._access.client.run_sync(self._arguments, name="arguments")

    # Waiting for its end

    def result(self, *, timeout: Duration | None = None) -> Coroutine[Any, Any, R_co]:
        """Wait for the job's end, and return what its task returned.

        Raises JobFailed if it is dead, JobCancelled if it was cancelled or discarded, ResultGone if
        the ledger no longer has it, and TimeoutError. Not for recurring jobs, not inside a task, and
        not before the transaction is committed in which the job was enqueued.
        """
        refuse_no_loop("result")
        return self._result(time_limit("result", timeout))

    def result_sync(self, *, timeout: Duration | None = None) -> R_co:
        """`result` for synchronous code."""
        refuse_running_loop("result")
        limit = time_limit("result_sync", timeout)
        job_id = self._id or self._access.client.run_sync(self._found, name="result")
        waiting = self._access.results.wait(job_id)
        try:
            end = waiting.result(None if limit is None else limit.total_seconds())
        except TimeoutError:
            raise too_late(job_id, limit) from None
        finally:
            waiting.cancel()
        value: R_co = returned(end, self.task, self._definition, joined=self._joined)
        return value

    # Sending

    @overload
    def signal(
        self, signal: Signal[T], value: T, *, id: str | None = None, connection: Any = None
    ) -> Coroutine[Any, Any, None]: ...
    @overload
    def signal(
        self, signal: str, value: Any, *, id: str | None = None, connection: Any = None
    ) -> Coroutine[Any, Any, None]: ...
    def signal(
        self,
        signal: Signal[Any] | str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002 - as everywhere in this API
        connection: Any = None,
    ) -> Coroutine[Any, Any, None]:
        """Send it a value that its function waits for, now or later; JobEnded if the job has ended.

        A second signal with the same `id` is the first one. Inside `ctx.transaction()`, and with
        `connection` in your own open transaction, it is sent by the commit.
        """
        new = self._new_signals(signal, value, id)
        sender = self._access.sender
        return sender.send(
            lambda place: _send_in(place, new), lambda store: self._send(store, new), connection, name="signal"
        )

    @overload
    def signal_sync(self, signal: Signal[T], value: T, *, id: str | None = None, connection: Any = None) -> None: ...
    @overload
    def signal_sync(self, signal: str, value: Any, *, id: str | None = None, connection: Any = None) -> None: ...
    def signal_sync(
        self,
        signal: Signal[Any] | str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002 - as everywhere in this API
        connection: Any = None,
    ) -> None:
        """`signal` for synchronous code."""
        new = self._new_signals(signal, value, id)
        sender = self._access.sender
        sender.send_sync(
            lambda place: _send_in(place, new), lambda store: self._send(store, new), connection, name="signal"
        )

    # Operating

    def pause(self) -> Coroutine[Any, Any, None]:
        """Keep it from being claimed; a current run continues. UnknownJob if that cannot be done."""
        return self._access.client.run(self._change("pause"), name="pause")

    def pause_sync(self) -> None:
        """`pause` for synchronous code."""
        self._access.client.run_sync(self._change("pause"), name="pause")

    def resume(self) -> Coroutine[Any, Any, None]:
        """Let it be claimed again after `pause`."""
        return self._access.client.run(self._change("resume"), name="resume")

    def resume_sync(self) -> None:
        """`resume` for synchronous code."""
        self._access.client.run_sync(self._change("resume"), name="resume")

    def run_now(self) -> Coroutine[Any, Any, None]:
        """Make it due now; the nominal time of its slot stays."""
        return self._access.client.run(self._change("run_now"), name="run_now")

    def run_now_sync(self) -> None:
        """`run_now` for synchronous code."""
        self._access.client.run_sync(self._change("run_now"), name="run_now")

    def retry(self) -> Coroutine[Any, Any, None]:
        """Give a dead letter a new set of attempts, due at once."""
        return self._access.client.run(self._change("retry"), name="retry")

    def retry_sync(self) -> None:
        """`retry` for synchronous code."""
        self._access.client.run_sync(self._change("retry"), name="retry")

    def cancel(self) -> Coroutine[Any, Any, Cancellation]:
        """End its current slot: at once if it waits; if it runs, its body is stopped, wherever that is.

        Returns `cancelled`, `stopping`, or `ended` if it had ended before. Its children are cancelled
        with it. Of a recurring job the next slot follows. UnknownJob if neither table nor ledger has it.
        """
        return self._access.client.run(self._cancel, name="cancel")

    def cancel_sync(self) -> Cancellation:
        """`cancel` for synchronous code."""
        return self._access.client.run_sync(self._cancel, name="cancel")

    def discard(self) -> Coroutine[Any, Any, None]:
        """Remove a dead letter, or a recurring job with its schedule, unless it is running; the ledger says so.

        To end any other job, `cancel` it.
        """
        return self._access.client.run(self._change("discard"), name="discard")

    def discard_sync(self) -> None:
        """`discard` for synchronous code."""
        self._access.client.run_sync(self._change("discard"), name="discard")

    def run_again(self) -> Coroutine[Any, Any, Job[R_co]]:
        """Enqueue another job with the same arguments, headers, queue and priority, due at once, without a key.

        UnknownJob if the job is gone and the ledger has not kept its arguments: see `history.arguments`.
        """
        return self._access.client.run(self._run_again, name="run_again")

    def run_again_sync(self) -> Job[R_co]:
        """`run_again` for synchronous code."""
        return self._access.client.run_sync(self._run_again, name="run_again")

    def forget(self, step: str, *, and_after: bool = False) -> Coroutine[Any, Any, int]:
        """Remove the record of a step, so that it runs again; with `and_after` also of those begun after it.

        Only while the job is not running, and no child of these steps is left. Returns how many were removed; 0: there
        is no such step, or the job runs.
        """
        return self._access.client.run(lambda store: self._forget(store, step, and_after), name="forget")

    def forget_sync(self, step: str, *, and_after: bool = False) -> int:
        """`forget` for synchronous code."""
        return self._access.client.run_sync(lambda store: self._forget(store, step, and_after), name="forget")

    # How

    async def _found(self, place: Place) -> UUID:
        """Its id, or UnknownJob if no job has its key, under any name that its task has had."""
        if self._id is not None:
            return self._id
        owners = await owners_of(self._names(), place)
        if not owners:
            raise UnknownJob(
                f"Task {self.task} has no job with key {self.key!r}.",
                remedy="A one-off is removed when it is done: see `reltask runs`.",
            )
        return next(iter(owners.values()))

    def _names(self) -> list[tuple[str, str]]:
        names = (self.task or "",) if self._definition is None else self._definition.names
        return [(name, self.key or "") for name in names]

    async def _view(self, store: Store) -> JobView | None:
        return await store.read_job(await self._found(store))

    async def _runs(self, store: Store) -> list[RunView]:
        return self._access.shown.runs(await store.list_runs(job_id=await self._found(store)))

    async def _steps(self, store: Store) -> list[StepView]:
        return await store.read_steps(await self._found(store))

    async def _signals(self, store: Store) -> list[SignalView]:
        return await store.list_signals(await self._found(store))

    async def _children(self, store: Store) -> list[ChildView]:
        return await store.list_children(await self._found(store))

    async def _result(self, limit: timedelta | None) -> R_co:
        job_id = self._id
        if job_id is None:
            job_id = await self._access.client.run(self._found, name="result")
        waiting = asyncio.wrap_future(self._access.results.wait(job_id))
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()) as patience:
                end = await waiting
        except TimeoutError:
            if not patience.expired():
                raise
            raise too_late(job_id, limit) from None
        value: R_co = returned(end, self.task, self._definition, joined=self._joined)
        return value

    def _new_signals(self, signal: Signal[Any] | str, value: Any, id: str | None) -> list[NewSignal]:  # noqa: A002
        """One signal, addressed to every name that the job's task has had: at most one of them has the key."""
        if id is not None:
            check_name(id, "id")
        elif (body := in_task.get()) is not None and body.on_enqueue is not None:
            body.on_enqueue("sent a signal without an id")
        signal_id, declared = id or str(uuid4()), signal_of(signal)
        text = declared.encode(value, limit=self._access.limits().arguments)
        if self._id is not None:
            return [NewSignal(id=signal_id, name=declared.name, value=text, job_id=self._id)]
        return [
            NewSignal(id=signal_id, name=declared.name, value=text, task=task, key=key) for task, key in self._names()
        ]

    async def _cancel(self, store: Store) -> Cancellation:
        job_id = await self._found(store)
        answer = await cancel_job(store, job_id)
        if answer is not Cancellation.ENDED:
            self._access.sender.stop([job_id] if answer is Cancellation.STOPPING else [])  # else its children, if any
        self._access.results.look([job_id])
        return answer

    async def _send(self, store: Store, signals: list[NewSignal]) -> None:
        await _send_in(store, signals)
        await self._access.sender.signal(store)

    def _change(self, change: str) -> Operation[None]:
        async def apply(store: Store) -> None:
            verbs = {
                "pause": store.pause_job,
                "resume": store.resume_job,
                "run_now": store.run_job_now,
                "retry": store.retry_job,
                "discard": store.discard_job,
            }
            job_id = await self._found(store)
            if not await verbs[change](job_id):
                raise UnknownJob(
                    f"Job {job_id} {CHANGES[change]}; nothing was changed.", remedy=f"See: reltask jobs show {job_id}"
                )
            if change in MAKE_DUE:
                await self._access.sender.signal(store, [job_id])
            if change == "discard":
                self._access.results.look([job_id])

        return apply

    async def _arguments(self, store: Store) -> dict[str, Any] | None:
        payload = await store.read_payload(await self._found(store))
        return None if payload is None else self._access.shown.arguments(payload)

    async def _run_again(self, store: Store) -> Job[R_co]:
        job_id = await self._found(store)
        payload = await store.read_payload(job_id)
        if payload is None or payload.args is None:
            why = "is not there" if payload is None else "has ended, and the ledger has not kept its arguments"
            raise UnknownJob(f"Job {job_id} {why}; nothing was enqueued.", remedy="See history.arguments.")
        return await self._access.run_again(payload, store)

    async def _forget(self, store: Store, step: str, and_after: bool) -> int:
        job_id = await self._found(store)
        forgotten = await store.forget_steps(job_id, step, and_after=and_after)
        if forgotten:
            await self._access.sender.signal(store, [job_id])
        elif any(
            child.task is not None and (and_after or child.step == step) for child in await store.list_children(job_id)
        ):
            raise UsageError(
                f"No step of job {job_id} was removed: some of its children have not ended, and are still counted.",
                remedy=f"See: reltask jobs show {job_id}. Wait for them, or pause the job and discard them first.",
            )
        return forgotten


async def _send_in(place: Store | Transaction | TaskTransaction, signals: list[NewSignal]) -> None:
    if not await place.send_signals(signals):
        target = signals[0].job_id or f"with key {signals[0].key!r}"
        raise JobEnded(f"Job {target} has ended, or never existed: signal {signals[0].name!r} was not sent.")
