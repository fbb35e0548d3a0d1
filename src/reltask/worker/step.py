"""The step whose function runs here."""

from __future__ import annotations

from contextvars import ContextVar

from msgspec import Struct

from reltask.errors import UsageError


class Step(Struct, frozen=True):
    """One call of a step's function."""

    name: str
    attempt: int
    idempotency_key: str
    """The same however often this step's function is called: pass it to systems that can use it."""


running_step: ContextVar[Step | None] = ContextVar("reltask_step", default=None)
"""Set while a step's function runs."""


def current_step() -> Step:
    """The step whose function calls this; UsageError elsewhere."""
    step = running_step.get()
    if step is None:
        raise UsageError("current_step() was called outside of a step.", remedy="Call it in the function of a step.")
    return step
