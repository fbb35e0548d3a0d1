"""Traces: a real SDK with an exporter in memory shows one trace from the request to the step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from reltask import App, Context, Retry, SyncContext
from reltask.telemetry.opentelemetry import instrument


class Traced:
    """An instrumented app, and the spans that it has ended."""

    def __init__(self, path: Path) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("shop")
        self.app = App(f"sqlite:///{path}/jobs.db")
        instrument(self.app, tracer_provider=provider)

    async def drain(self) -> None:
        async with self.app.worker() as worker:
            await worker.drained()

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    made = Traced(tmp_path)
    yield made
    made.app.close()


async def test_one_trace_from_the_request_to_the_step(traced: Traced) -> None:
    """Request, send, process, step: one trace, each the parent of the next."""
    app = traced.app

    async def charge() -> str:
        return "paid"

    @app.task(queue="orders")
    async def order(ctx: Context, number: int) -> None:
        assert number == 17
        await ctx.step("charge", charge)

    with traced.tracer.start_as_current_span("POST /orders"):
        job = await order.enqueue(17)
    await traced.drain()
    request, send, process, step = [
        traced.span(name) for name in ("POST /orders", "send order", "process order", "step charge")
    ]
    assert {one.context.trace_id for one in (request, send, process, step)} == {request.context.trace_id}
    assert [one.parent.span_id if one.parent else None for one in (send, process, step)] == [
        one.context.span_id for one in (request, send, process)
    ]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert process.attributes is not None
    assert send.attributes is not None
    for span, operation in ((send, "send"), (process, "process")):
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == "reltask"
        assert span.attributes["messaging.destination.name"] == "orders"
        assert span.attributes["messaging.operation.type"] == operation
        assert span.attributes["messaging.message.id"] == str(job.id)
    assert "17" not in str([dict(span.attributes or {}) for span in traced.exporter.get_finished_spans()]).replace(
        str(job.id), ""
    ).replace("reltask.", "")


async def test_later_runs_only_link(traced: Traced) -> None:
    """A delayed job and a retry begin traces of their own, with a link to their producer."""

    @traced.app.task
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry(delay="0s")

    @traced.app.task
    async def later() -> None: ...

    with traced.tracer.start_as_current_span("request") as request:
        await flaky.enqueue()
        await later.using(delay="1ms").enqueue()
        trace_id = request.get_span_context().trace_id
    await traced.drain()
    first, second = sorted(traced.spans("process flaky"), key=lambda span: span.start_time or 0)
    delayed = traced.span("process later")
    assert first.context.trace_id == trace_id
    for linked in (second, delayed):
        assert linked.context.trace_id != trace_id
        assert [link.context.trace_id for link in linked.links] == [trace_id]
    assert first.status.status_code is not StatusCode.ERROR


async def test_a_linked_run_has_no_parent(traced: Traced) -> None:
    """A worker that was started inside a span, as at the startup of a web application, adds no run to that trace."""

    @traced.app.task
    async def later() -> None: ...

    await later.using(delay="1ms").enqueue()
    untraced = App(traced.app.url)
    await untraced.task(name="later")(_nothing).enqueue()
    untraced.close()
    with traced.tracer.start_as_current_span("startup"):
        await traced.drain()
    startup = traced.span("startup").context.trace_id
    assert len(traced.spans("process later")) == 2
    for run in traced.spans("process later"):
        assert run.parent is None
        assert run.context.trace_id != startup
        assert [link for link in run.links if link.context.trace_id == startup] == []


async def _nothing() -> None:
    """A body that does not run: another process knows the task."""


async def test_errors_are_named_and_not_quoted(traced: Traced) -> None:
    """The kind of an error, in the run and in the step; its text may hold arguments."""

    @traced.app.task(max_attempts=1)
    def bad(ctx: SyncContext) -> None:
        ctx.step("charge", _fail)

    await bad.enqueue()
    await traced.drain()
    for name, kind in (("step charge", "ValueError"), ("process bad", "StepFailed")):
        span = traced.span(name)
        assert span.attributes is not None
        assert span.attributes["error.type"] == kind
        assert span.status.status_code is StatusCode.ERROR
        assert "secret" not in str(span.to_json())


def _fail() -> None:
    raise ValueError("secret")


async def test_a_batch_says_how_many(traced: Traced) -> None:
    """Each message has its span and its id; a job enqueued in a run continues that run's trace."""

    @traced.app.task
    async def child() -> None: ...

    @traced.app.task
    async def parent() -> None:
        await traced.app.enqueue_many([child.call(), child.call()])

    await parent.enqueue()
    await traced.drain()
    sends = traced.spans("send child")
    process = traced.span("process parent")
    assert [dict(span.attributes or {})["messaging.batch.message_count"] for span in sends] == [2, 2]
    assert len({dict(span.attributes or {})["messaging.message.id"] for span in sends}) == 2
    assert {span.parent.span_id for span in sends if span.parent} == {process.context.span_id}
    assert {span.context.trace_id for span in traced.spans("process child")} == {process.context.trace_id}


def test_synchronous_code_is_traced(traced: Traced) -> None:
    """enqueue_sync makes the same span."""

    @traced.app.task
    def mail() -> None: ...

    job = mail.enqueue_sync()
    span = traced.span("send mail")
    assert dict(span.attributes or {})["messaging.message.id"] == str(job.id)


@pytest.mark.slow
def test_nothing_is_imported_that_is_not_asked_for() -> None:
    """An app imports neither OpenTelemetry nor Prometheus nor the dashboard."""
    program = (
        "import sys, reltask; app = reltask.App('sqlite:///x.db'); app.task(name='t')(lambda: None)\n"
        "print([name for name in sys.modules if name.split('.')[0] in"
        " ('opentelemetry', 'prometheus_client', 'starlette', 'jinja2', 'uvicorn')])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
