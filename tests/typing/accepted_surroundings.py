"""Middleware, context variables, codecs and hidden values: mypy and pyright accept every line of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Self, assert_type

from reltask import App, BaseContext, Codec, Context, Hidden, Job, Middleware, ProcessContext, SyncContext

request_id: ContextVar[str] = ContextVar("request_id")
depth: ContextVar[int] = ContextVar("depth")


@contextmanager
def tenant(ctx: BaseContext) -> Generator[None, None, None]:
    assert_type(ctx.headers, Mapping[str, Any])
    assert_type(ctx.cancelled, bool)
    ctx.logger.info("%s %s", ctx.task, ctx.attempt)
    ctx.check()
    yield


class Span:
    def __init__(self, ctx: BaseContext) -> None:
        self.name = ctx.task

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Reversed:
    hash_key = b"sixteen bytes or more"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


around: list[Middleware] = [tenant, Span]
codec: Codec = Reversed()
app = App("sqlite:///reltask.db", contextvars=[request_id, depth], middleware=[tenant, Span], codec=codec)
other = App("sqlite:///reltask.db", middleware=around)


@app.task(keep_arguments=False)
async def login(ctx: Context, user: str, password: Annotated[str, Hidden]) -> Annotated[str, Hidden]:
    base: BaseContext = ctx
    return str(base.headers["tenant"]) + user + password


def look(sync: SyncContext, child: ProcessContext) -> list[BaseContext]:
    return [sync, child]


async def produce() -> None:
    job = await login.using(headers={"tenant": "acme", "trace": [1, 2]}).enqueue("ada", "secret")
    assert_type(job, Job[str])
    assert_type(await job.run_again(), Job[str])
    assert_type(await job.arguments(), dict[str, Any] | None)
