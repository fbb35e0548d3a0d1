"""What the tests of durable functions share: sending a signal, reading the steps, and a body that fails on demand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from uuid import UUID

from reltask.errors import TransientError
from reltask.model.arguments import encode_json
from reltask.model.durable import NewSignal, SignalView, StepView
from reltask.producer.job import Job
from reltask.producer.signal import Signal, signal_of
from reltask.stores.store import Store
from reltask.worker.worker import Worker
from tests.worker.worker_harness import HarnessApp


@contextlib.asynccontextmanager
async def sound(app: HarnessApp) -> AsyncIterator[Store]:
    """A store beside the app's own, without faults."""
    store = app.sound_store()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def send(
    app: HarnessApp,
    job: Job[Any] | UUID,
    signal: Signal[Any] | str,
    value: object = None,
    *,
    id: str = "1",  # noqa: A002 - as the API calls it
    wake: Worker | None = None,
) -> bool:
    """Send a signal as another process does, and wake a worker as its notification would; False: there is no job."""
    job_id = job if isinstance(job, UUID) else job.id
    text = signal.encode(value) if isinstance(signal, Signal) else encode_json(value).decode()
    async with sound(app) as store:
        sent = await store.send_signals([NewSignal(id=id, name=signal_of(signal).name, value=text, job_id=job_id)])
    if wake is not None:
        wake.wake()
    return id in sent


async def steps_of(app: HarnessApp, job: Job[Any] | UUID, slot_no: int | None = None) -> dict[str, StepView]:
    """The recorded steps of a job, by name."""
    async with sound(app) as store:
        found = await store.read_steps(job if isinstance(job, UUID) else job.id, slot_no)
    return {step.name: step for step in found}


async def signals_of(app: HarnessApp, job: Job[Any]) -> list[SignalView]:
    async with sound(app) as store:
        return await store.list_signals(job.id)


async def result_of(app: HarnessApp, task: str | None = None) -> str | None:
    """The result of the only run that succeeded."""
    (result,) = [run.result for run in await app.ledger(task) if run.outcome == "succeeded"]
    return result


def at(app: HarnessApp, verb: str, work: Callable[[], Coroutine[Any, Any, object]], *, after: bool = False) -> None:
    """Do something once, right before the worker's next call of a verb is sent, or before its answer arrives."""
    name = "after" if after else "before"
    usual = getattr(app.faults, name)

    async def hooked(called: str, *args: Any) -> None:
        await usual(called, *args)
        if called == verb:
            setattr(app.faults, name, usual)
            await work()

    setattr(app.faults, name, hooked)


def away() -> TransientError:
    return TransientError("the database is away")
