"""`@app.task(…)`: its type, and what it says to an option that cannot be right."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from reltask.duration import Duration, parse_duration
from reltask.engine.child import ProcessContext
from reltask.engine.context import Context, SyncContext
from reltask.errors import DeclarationError
from reltask.handles import Task
from reltask.schedule import make_schedule
from reltask.tasks import TaskOptions

P = ParamSpec("P")
R = TypeVar("R")
OTHERS = ("name", "isolation", "aliases")


class TaskDecorator:
    """The type of `@app.task(…)`: which parameters `enqueue` takes follows from the function's own."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[SyncContext, P], R], /
    ) -> Task[P, Concatenate[SyncContext, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[ProcessContext, P], R], /
    ) -> Task[P, Concatenate[ProcessContext, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Register the function."""
        return function


def refuse_unknown(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """An option of `@app.task` that does not exist, with the one that was probably meant."""
    known = [
        *inspect.signature(make_schedule).parameters,
        *TaskOptions.__struct_fields__,
        "name",
        "isolation",
        "aliases",
    ]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise DeclarationError(
                f"Task {function.__name__}: @app.task has no option {name!r}.",
                remedy=f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(known))}.",
            )


def former_names(function: Callable[..., Any], aliases: Iterable[str]) -> tuple[str, ...]:
    """The names in `aliases=`. One text would be taken for the names of its letters, which no job has."""
    if isinstance(aliases, str):
        raise DeclarationError(
            f"Task {function.__name__}: aliases={aliases!r} is one text, not a list of names.",
            remedy=f"Write aliases=[{aliases!r}].",
        )
    return tuple(aliases)


def length(name: str, value: Duration | None) -> timedelta | None:
    """An option's length of time."""
    if value is None:
        return None
    try:
        return parse_duration(value, name=name)
    except ValueError as error:
        raise DeclarationError(str(error)) from None
