"""The step whose function runs here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
AroundStep = Callable[[Step], AbstractContextManager[object]]
around_steps: ContextVar[AroundStep | None] = ContextVar("reltask_around_steps", default=None)
"""What is entered around the function of each step of this run; None: nothing."""


def around(step: Step) -> AbstractContextManager[object]:
    """What surrounds the function of this step."""
    made = around_steps.get()
    return nullcontext() if made is None else made(step)


def current_step() -> Step:
    """The step whose function calls this; UsageError elsewhere."""
    step = running_step.get()
    if step is None:
        raise UsageError("current_step() was called outside of a step.", remedy="Call it in the function of a step.")
    return step
