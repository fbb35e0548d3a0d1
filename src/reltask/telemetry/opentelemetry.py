"""Traces for OpenTelemetry (extra `otel`, which installs its API only; the application brings the SDK).

    web request ──► send mail ·········· jobs.headers ··········► process mail ──► step charge
    (your span)     PRODUCER             traceparent              CONSUMER         INTERNAL

A job that is due at once continues its producer's trace. A run that happens later for other reasons (a delay, a
schedule, a retry) begins a trace of its own with a link to it: a trace that stays open for days is of no use.

    from reltask.telemetry.opentelemetry import instrument
    instrument(app)

Span names and attributes follow the semantic conventions for messaging. Arguments and results are never recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from reltask.errors import TaskSignal
from reltask.model.task import TaskDefinition
from reltask.producer.enqueue import Call
from reltask.producer.job import Job
from reltask.producer.options import JobOptions
from reltask.version import __version__
from reltask.worker.base_context import BaseContext
from reltask.worker.step import Step, around_steps

if TYPE_CHECKING:
    from reltask.app import App

SYSTEM = "reltask"
LINKED = "trace-link"
"""The header of a job whose runs only link to the trace of its producer."""


def instrument(app: App, *, tracer_provider: trace.TracerProvider | None = None) -> None:
    """Trace an app's enqueues, runs and steps. Call it once, before the first job is enqueued or claimed."""
    tracing = Tracing(trace.get_tracer("reltask", __version__, tracer_provider))
    app.trace(tracing, tracing.process)


class Tracing:
    """The spans of one app."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    # Producing

    def begin(self, task: TaskDefinition, options: JobOptions) -> tuple[Span | None, dict[str, Any]]:
        """A call is made: its producer span, and the headers that carry the trace. A schedule has no span."""
        carried: dict[str, Any] = {}
        if options.schedule is not None:
            if trace.get_current_span().get_span_context().is_valid:
                propagate.inject(carried)
                carried[LINKED] = "recurring"
            return None, carried
        queue = options.queue or task.options.queue
        span = self._tracer.start_span(
            f"send {task.name}", kind=SpanKind.PRODUCER, attributes=_attributes(task.name, queue, "send")
        )
        propagate.inject(carried, trace.set_span_in_context(span))
        if options.delay or options.at:
            carried[LINKED] = "delayed"
        return span, carried

    @contextlib.contextmanager
    def sending(self, calls: Sequence[Call[Any]]) -> Iterator[Callable[[Sequence[Job[Any]]], None]]:
        """While calls are inserted: their spans end with the insert."""
        spans = [call.span for call in calls if isinstance(call.span, Span)]

        def sent(jobs: Sequence[Job[Any]]) -> None:
            for call, job in zip(calls, jobs, strict=True):
                if isinstance(call.span, Span):
                    call.span.set_attribute("messaging.message.id", str(job.id))

        for span in spans:
            if len(calls) > 1:
                span.set_attribute("messaging.batch.message_count", len(calls))
        try:
            yield sent
        except BaseException as error:
            for span in spans:
                _failed(span, error)
            raise
        finally:
            for span in spans:
                span.end()

    # Running

    @contextlib.contextmanager
    def process(self, ctx: BaseContext) -> Iterator[None]:
        """Middleware: the consumer span of one run."""
        headers = {name: value for name, value in ctx.headers.items() if isinstance(value, str)}
        producer = propagate.extract(headers, Context())  # not the current one: the worker may be started in a span
        origin = trace.get_current_span(producer).get_span_context()
        is_linked = LINKED in headers or ctx.attempt > 1
        attributes = _attributes(ctx.task, ctx.queue, "process")
        attributes |= {
            "messaging.message.id": str(ctx.job_id),
            "reltask.attempt": ctx.attempt,
            "reltask.fence": ctx.fence,
        }
        with self._tracer.start_as_current_span(
            f"process {ctx.task}",
            context=Context() if is_linked else producer,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(origin)] if is_linked and origin.is_valid else [],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            token = around_steps.set(self._step)
            try:
                yield
            except TaskSignal:  # it says how the job goes on: no error
                raise
            except BaseException as error:
                _failed(span, error)
                raise
            finally:
                around_steps.reset(token)

    @contextlib.contextmanager
    def _step(self, step: Step) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            f"step {step.name}",
            attributes={"reltask.step": step.name, "reltask.step.attempt": step.attempt},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _failed(span, error)
                raise


def _attributes(task: str, queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "reltask.task": task,
    }


def _failed(span: Span, error: BaseException) -> None:
    """The kind of the error, not its text: it may hold arguments."""
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR))
