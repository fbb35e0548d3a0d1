"""Tasks with an app that has context variables and middleware, for child processes: imported by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from reltask import App, BaseContext, ProcessContext

request_id: ContextVar[str] = ContextVar("request_id", default="none")
tenant: ContextVar[str] = ContextVar("tenant", default="none")


@contextmanager
def use_tenant(ctx: BaseContext) -> Iterator[None]:
    token = tenant.set(ctx.headers["tenant"])
    try:
        yield
    finally:
        tenant.reset(token)


@contextmanager
def refuse(ctx: BaseContext) -> Iterator[None]:
    raise ValueError(f"no tenant for {ctx.task}")
    yield


app = App("sqlite:///never-opened.db", contextvars=[request_id], middleware=[use_tenant])
refusing = App("sqlite:///never-opened.db", middleware=[refuse])


@app.task(isolation="process")
def seen_in_child() -> list[str]:
    return [request_id.get(), tenant.get()]


@app.task(isolation="process")
def headers_in_child(ctx: ProcessContext) -> dict[str, str]:
    return dict(ctx.headers)


@refusing.task(isolation="process")
def refused_in_child() -> str:
    return "it ran"


def bare() -> None:
    """Not decorated: a child cannot find its app."""
