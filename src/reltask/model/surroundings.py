"""What surrounds the runs of an app: headers, context variables and middleware.

    enqueue                                            run
    ───────                                            ───
    using(headers={"tenant": "x"})  ──► jobs.headers ──► ctx.headers
    request_id.get()                ──► "~context"   ──► request_id.set(…), before the body
                                                         with middleware(ctx): the body

A job that is enqueued inside a run inherits the headers of that run: its own come on top, and one
that is None is left out. Retries, and the next slot after `Again`, keep the headers of their job.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar, copy_context
from typing import Any

import msgspec

from reltask.errors import ArgumentsError, ConfigurationError
from reltask.model.arguments import encode_json, is_json
from reltask.model.codec import refuse_encoded

CARRIED = "~context"
"""The header that holds context variables."""
Around = Callable[[Any], AbstractContextManager[object]]
"""Middleware: called with a run's context."""


class Surroundings:
    """What one app carries from enqueue to run, and puts around each run."""

    def __init__(self, variables: Iterable[ContextVar[Any]] = (), middleware: Iterable[Around] = ()) -> None:
        self.variables = {variable.name: variable for variable in _checked(variables)}
        self.middleware = _checked_middleware(middleware)
        self.is_empty = not (self.variables or self.middleware)
        """Whether nothing surrounds a run."""

    def enclose(self, around: Around) -> None:
        """Put `around` outside of all other middleware."""
        self.middleware.insert(0, around)
        self.is_empty = False

    # At the enqueue

    def headers(self, given: Mapping[str, Any] | None, inherited: str | None, *, limit: int) -> str | None:
        """The headers of a new job, as JSON; None: it has none."""
        merged = {**_read(inherited), **(given or {})}
        carried = merged.pop(CARRIED, {}) | self._captured()
        merged = {name: value for name, value in merged.items() if value is not None}
        if carried:
            merged[CARRIED] = carried
        if not merged:
            return None
        try:
            raw = encode_json(merged)
        except ValueError as error:
            raise ArgumentsError(f"The headers cannot be stored: {error}.") from None
        if len(raw) > limit:
            raise ArgumentsError(
                f"The headers take {len(raw):,} bytes, more than the limit of {limit:,}.",
                remedy="Carry less, or raise limits.headers.",
            )
        return raw.decode()

    def _captured(self) -> dict[str, Any]:
        if not self.variables:
            return {}
        context = copy_context()
        captured = {name: context[variable] for name, variable in self.variables.items() if variable in context}
        for name, value in captured.items():
            if not is_json(value):
                raise ArgumentsError(
                    f"The context variable {name!r} holds {type(value).__name__}, which a job cannot carry.",
                    remedy="Use values that JSON can represent: text, numbers, lists, dicts with text as keys.",
                )
        return captured

    # At the run

    @contextlib.contextmanager
    def around(self, context: Any, headers: str | None) -> Iterator[None]:
        """Set the context variables that a job carries, and enter the middleware, the first one outermost."""
        carried = _read(headers).get(CARRIED)
        for name, value in (carried or {}).items():
            if name in self.variables:
                self.variables[name].set(value)
        with ExitStack() as stack:
            for one in self.middleware:
                stack.enter_context(_entered(one, context))
            yield


def _entered(one: Around, context: Any) -> AbstractContextManager[object]:
    manager = one(context)
    if not hasattr(manager, "__enter__"):
        name = getattr(one, "__name__", type(one).__name__)
        raise ConfigurationError(
            f"Middleware {name} returned {type(manager).__name__}, which is not a context manager.",
            remedy="Write @contextmanager above it; it must not be async.",
        )
    return manager


def _checked_middleware(middleware: Iterable[Around]) -> list[Around]:
    listed = _listed(middleware, "App(middleware=…)", "middleware=[tenant]")
    for one in listed:
        why = None
        if not callable(one):
            why = f"{type(one).__name__} cannot be called"
        elif inspect.isgeneratorfunction(one):
            why = f"{one.__name__} is no context manager"
        elif inspect.isasyncgenfunction(inspect.unwrap(one)) or inspect.iscoroutinefunction(one):
            why = f"{getattr(one, '__name__', one)} is async"
        if why is not None:
            raise ConfigurationError(
                f"App(middleware=…): {why}.",
                remedy="Write @contextmanager above a function that takes the context and yields once.",
            )
    return listed


def _listed(given: Iterable[Any], label: str, example: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise ConfigurationError(
            f"{label} takes a list, not {type(given).__name__}.", remedy=f"Write {example}."
        ) from None


def _checked(variables: Iterable[ContextVar[Any]]) -> list[ContextVar[Any]]:
    listed: list[ContextVar[Any]] = _listed(variables, "App(contextvars=…)", "contextvars=[request_id]")
    for variable in listed:
        if not isinstance(variable, ContextVar):
            raise ConfigurationError(
                f"App(contextvars=…) takes ContextVar objects, not {type(variable).__name__}.",
                remedy='Write request_id = ContextVar("request_id"), and contextvars=[request_id].',
            )
    names = [variable.name for variable in listed]
    if len(set(names)) < len(names):
        raise ConfigurationError("App(contextvars=…): two of them have the same name.", remedy="Rename one of them.")
    return listed


def _read(headers: str | None) -> dict[str, Any]:
    if headers is None:
        return {}
    refuse_encoded(headers)
    return msgspec.json.decode(headers, type=dict[str, Any])


def visible_headers(headers: str | None) -> dict[str, Any]:
    """A job's headers as its task sees them: without the context variables."""
    return {name: value for name, value in _read(headers).items() if name != CARRIED}


def check_headers(headers: object) -> None:
    """Refuse headers that could not be stored and read again."""
    if not isinstance(headers, Mapping):
        raise ArgumentsError(f"headers= is {type(headers).__name__}.", remedy='Write headers={"tenant": "acme"}.')
    for name, value in headers.items():
        if not isinstance(name, str) or not name.isprintable() or not name or name.startswith("~"):
            raise ArgumentsError(
                "The name of a header is printable text that does not start with ~.",
                remedy='Write headers={"tenant": "acme"}.',
            )
        if not is_json(value):
            raise ArgumentsError(
                f"The header {name!r} holds {type(value).__name__}.",
                remedy="Use values that JSON can represent: text, numbers, lists, dicts with text as keys.",
            )
