"""Limits across the cluster: how many jobs may run at once, and how many may start in a time.

    job ── key ──► limit_keys: running 3 of 5, tokens 0.4     one row per key, locked by claims alone
                       ▲
    end ── mark ───────┘  a row of `marks` says that a place is free; the next claim counts it

A limit has a name. Its key is that name; with `by` there is a key for each value, `name:value`. A
claim takes a place of each of the job's keys, and a token of those that have a rate; the end of the
claim gives the place back. Tokens come back with time: `count` in `period`, and a key never has more
than `burst` of them. So in any window there are at most count × window / period + burst starts.

Ends, enqueues and wake-ups insert marks and lock nothing: they may be part of a transaction that
stays open, and every other worker would wait for it. `claim_limited.sql` has the protocol.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct

from reltask.errors import ArgumentsError, DeclarationError
from reltask.model.arguments import Arguments, to_plain
from reltask.model.duration import format_duration, parse_duration
from reltask.model.keys import KeyHash

LONGEST_NAME = 100
LONGEST_KEY = 200
MOST = 8
"""Limits of one task."""
MOST_RUNNING = 1_000_000
MOST_TOKENS = 1_000_000_000
_MILLISECOND = timedelta(milliseconds=1)


class Rate(Struct, frozen=True):
    """At most `count` starts in `period`."""

    count: int
    period: timedelta

    def __str__(self) -> str:
        return f"{self.count}/{format_duration(self.period)}"

    @classmethod
    def parse(cls, text: object) -> Rate:
        """`"100/m"`, `"5/30s"`: a number, and a duration whose number may be left out. ValueError if it is neither."""
        count, slash, period = text.partition("/") if isinstance(text, str) else ("", "", "")
        if not slash or not count.isascii() or not count.isdigit() or not period:
            raise ValueError(f'rate={text!r} is not a rate: write "100/m" or "5/30s".')
        length = parse_duration(period if period[0].isdigit() else f"1{period}", name="rate")
        if not 1 <= int(count) <= MOST_TOKENS or length < _MILLISECOND:
            raise ValueError(f"rate={text!r} is out of range: write 1 to {MOST_TOKENS} starts, in 1ms or more.")
        return cls(int(count), length)

    @classmethod
    def of(cls, count: int | None, period_ms: int | None) -> Rate | None:
        """The rate of a row."""
        return None if count is None or period_ms is None else cls(count, timedelta(milliseconds=period_ms))

    @property
    def default_burst(self) -> int:
        """What a second brings, and at least one: less would be lost whenever a claim is a little late."""
        return min(MOST_TOKENS, max(1, math.ceil(self.count * timedelta(seconds=1) / self.period)))


def shown_rate(count: int | None, period_ms: int | None) -> str | None:
    """The rate of a row, as people write it."""
    rate = Rate.of(count, period_ms)
    return None if rate is None else str(rate)


class LimitRule(Struct, frozen=True, kw_only=True):
    """A limit as the database has it."""

    name: str
    running: int | None = None
    """At once, per key; None: any number."""
    rate: Rate | None = None
    """Starts, per key; None: any number."""
    burst: int | None = None
    """The most tokens that a key can have; None without a rate."""
    declaration: str = ""
    """Hash of the declaration in code."""
    app_version: str | None = None


class LimitView(Struct, frozen=True, kw_only=True):
    """A limit, and what of it is in use."""

    name: str
    running: int | None
    rate: str | None
    burst: int | None
    keys: int
    """How many keys have been counted: 1, or one for each value of `by`."""
    in_use: int
    """Places taken, of all its keys."""
    waiting: int
    """Due jobs that have no place yet."""
    tokens: float | None = None
    """How many may start at once now. None: the limit has no rate, or counts each value of `by` by itself."""


class LimitKeyView(Struct, frozen=True, kw_only=True):
    """One key of a limit."""

    key: str
    in_use: int
    waiting: int
    tokens: float | None
    """None: the limit has no rate."""


class JobLimit(Struct, frozen=True):
    """One of the limits of a job: what of its key is in use."""

    key: str
    running: int | None
    rate_count: int | None
    rate_period_ms: int | None
    burst: int | None
    in_use: int
    waiting: int
    tokens: float | None
    """None: the limit has no rate."""

    @property
    def full(self) -> str:
        """Why no job of this key can start now, with its numbers; empty: one can."""
        wait = f"{self.waiting:,} {'job waits' if self.waiting == 1 else 'jobs wait'} for it"
        if self.running is not None and self.in_use >= self.running:
            return f"{self.key} is full: {self.in_use:,} of {self.running:,} running, {wait}"
        if self.tokens is not None and self.tokens < 1:
            rate = shown_rate(self.rate_count, self.rate_period_ms)
            return f"{self.key} is full: {rate} have started, {self.tokens:.1f} tokens left, {wait}"
        return ""


class Limit:
    """How many jobs may run at once, and start in a time, across all workers.

    `Limit("smtp", running=5, rate="100/m", burst=20)` is shared by all tasks that name it.
    `Limit(running=1, by="customer")` counts each value of that parameter by itself; `by` may also be a
    function of some of the task's parameters. A limit without a name belongs to its task.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        running: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        by: str | Callable[..., object] | None = None,
    ) -> None:
        self.name = None if name is None else _checked_name(name)
        label = "Limit" if name is None else f"Limit {name!r}"
        if running is None and rate is None:
            raise DeclarationError(f"{label} limits nothing.", remedy='Give running=5, or rate="100/m", or both.')
        self.running = _number(label, "running", running, least=1, most=MOST_RUNNING)
        try:
            self.rate = None if rate is None else Rate.parse(rate)
        except ValueError as error:
            raise DeclarationError(f"{label}: {error}") from None
        if burst is not None and self.rate is None:
            raise DeclarationError(f"{label}: burst without rate has no effect.", remedy="Give a rate, or no burst.")
        given = _number(label, "burst", burst, least=1, most=MOST_TOKENS)
        self.burst = given if given is not None or self.rate is None else self.rate.default_burst
        if by is not None and not isinstance(by, str) and not callable(by):
            raise DeclarationError(f"{label}: by={by!r} is neither a parameter's name nor a function.")
        self.by = by

    def __repr__(self) -> str:
        given = {"running": self.running, "rate": self.rate and str(self.rate), "burst": self.burst, "by": self.by}
        shown = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"Limit({', '.join(([] if self.name is None else [repr(self.name)]) + shown)})"

    def rule(self, name: str, app_version: str | None = None) -> LimitRule:
        """What a worker declares."""
        rate = self.rate
        numbers = (self.running, rate and rate.count, rate and rate.period // _MILLISECOND, self.burst)
        return LimitRule(
            name=name,
            running=self.running,
            rate=rate,
            burst=self.burst,
            declaration=hashlib.sha256(msgspec.json.encode(numbers)).hexdigest()[:16],
            app_version=app_version,
        )


class TaskLimits:
    """The limits of one task: they make the keys of its jobs."""

    def __init__(self, task: str, given: object, parameters: Collection[str]) -> None:
        """DeclarationError if a limit does not fit the task."""
        limits = _listed(task, given)
        self.by_name = {_name_of(limit, task): limit for limit in limits}
        if len(self.by_name) < len(limits):
            raise DeclarationError(f"Task {task}: two of its limits have one name.", remedy="Give each its own name.")
        for limit in limits:
            _check_by(task, limit, parameters)
        # Jobs wait at a key of their own first: there they are in no other job's way.
        self._ordered = sorted(self.by_name.items(), key=lambda item: item[1].by is None)

    def keys(self, arguments: Arguments, args: str, hashing: KeyHash) -> tuple[str, ...]:
        """The keys of a job with these arguments, JSON. They are decoded only if a limit counts by one."""
        given = {} if all(limit.by is None for _, limit in self._ordered) else arguments.bound(args)
        return tuple(
            name if limit.by is None else key_of(name, _value(limit.by, given), hashing)
            for name, limit in self._ordered
        )


def key_of(name: str, value: object, hashing: KeyHash) -> str:
    """The key of a limit for one value: `name:value`; a long value, and any in an app with a codec, is hashed."""
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=to_plain).decode()
    except TypeError as error:
        raise ArgumentsError(
            f"Limit {name!r} counts by a value that has no key: {error}.", remedy="Let `by` answer what JSON has."
        ) from None
    key = f"{name}:{text}"
    if hashing.secret == b"" and len(key) <= LONGEST_KEY and text.isprintable():
        return key
    return f"{name}:#{hashing.of(value)}"


def _value(by: str | Callable[..., object], given: Mapping[str, Any]) -> object:
    return given[by] if isinstance(by, str) else by(**{name: given[name] for name in _names(by)})


def _check_by(task: str, limit: Limit, parameters: Collection[str]) -> None:
    if callable(limit.by) and not _can_be_called(limit.by):
        raise DeclarationError(
            f"Task {task}: {limit!r} counts by what cannot be called with parameters of the task by name.",
            remedy=f"Write by=lambda {next(iter(parameters), 'customer')}: ….",
        )
    for name in [limit.by] if isinstance(limit.by, str) else _names(limit.by):
        if name not in parameters:
            raise DeclarationError(
                f"Task {task}: {limit!r} counts by {name!r}, which is not a parameter of the task.",
                remedy=f"Its parameters: {', '.join(parameters) or 'none'}.",
            )


def _listed(task: str, given: object) -> list[Limit]:
    limits = [given] if isinstance(given, Limit) else given
    if not isinstance(limits, list | tuple) or not all(isinstance(limit, Limit) for limit in limits) or not limits:
        raise DeclarationError(
            f"Task {task}: limit={given!r} is not a limit.", remedy="Write limit=Limit(…), or a tuple of them."
        )
    if len(limits) > MOST:
        raise DeclarationError(f"Task {task} has {len(limits)} limits.", remedy=f"Write at most {MOST}.")
    return list(limits)


def _name_of(limit: Limit, task: str) -> str:
    if limit.name is not None:
        return limit.name
    try:
        return _checked_name(task)
    except DeclarationError as error:
        raise DeclarationError(
            f"Task {task}: its name cannot be that of a limit.", remedy='Name the limit: Limit("name", …).'
        ) from error


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not name.isprintable() or ":" in name:
        raise DeclarationError(
            f"Limit: {name!r} cannot be the name of a limit.",
            remedy=f"Write 1 to {LONGEST_NAME} printable characters, without a colon.",
        )
    return name


def _number(label: str, name: str, value: object, *, least: int, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise DeclarationError(f"{label}: {name}={value!r} is not a whole number from {least} to {most}.")
    return value


def _can_be_called(by: Callable[..., object]) -> bool:
    """With parameters by name, and answers a value, not a coroutine."""
    try:
        parameters = inspect.signature(by).parameters.values()
    except ValueError:  # such as int
        return False
    named = all(one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in parameters)
    return named and not inspect.iscoroutinefunction(by)


def _names(function: Callable[..., object] | None) -> list[str]:
    return [] if function is None else list(inspect.signature(function).parameters)
