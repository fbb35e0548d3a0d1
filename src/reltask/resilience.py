"""Sending a statement to a database that is sometimes away. Only the stores use it.

    call ──► breaker: may I? ──► send ──► answered ───────────────────────────► result, or the refusal
              ▲      │ no                  │ transient, or ambiguous and repeatable
              │      ▼                     ▼
              │  CircuitOpen       retries: again? ── no ──► the error
              └──────── wait ──────────── yes

`Breaker` decides whether to send at all, `Retries` whether and when to send again; both are pure. `Policy` asks both.
Heartbeats do not pass here: a beat that waits behind a breaker is a lost lock. They are sent by `AskOnce`.

Waiting before the next try:

    try ─ 1 s ─ try ─ 2 s ─ try ─ 4 s ─ try ─ 8 s ─ try ─ give up        each wait up to half as long again

The jitter only lengthens a wait, and by less than the next doubling. So waits always grow, a database that restarts is
never asked earlier than planned, and workers that failed together do not come back together.

The circuit breaker:

              5 failures in a row                30 s later, a caller asks
    CLOSED ───────────────────────────► OPEN ────────────────────────────► HALF-OPEN
    all are sent                    none is sent                        one is sent: the probe
       ▲                                 ▲                                  │       │
       │                                 └───────── the probe fails ────────┘       │
       └────────────────────────────── the database answers ────────────────────────┘

The hard part is *one*. When the wait is over, all waiting callers come at the same moment, and a breaker that only
looks at the time lets them all through. So a caller asks for a permit, there is one permit while the breaker is
half-open, and its owner reports the result: answered, failed, or abandoned, which gives the permit to the next caller.
A permit carries the number of its phase. A statement that was sent before the breaker opened may end much later; its
permit is out of date then, and changes nothing: only a probe can close an open breaker.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Literal, NewType, TypeVar

from reltask.errors import AmbiguousError, CircuitOpen, ReltaskError, TransientError, UsageError
from reltask.model.clock import Clock

__all__ = ["AskOnce", "Breaker", "CircuitState", "Permit", "Policy", "Retries"]

T = TypeVar("T")
CircuitState = Literal["closed", "open", "half-open"]
Permit = NewType("Permit", int)
"""The right to send once. Hand it back with `answered`, `failed` or `abandoned`."""
JITTER = 0.5
"""The largest share of a wait that chance adds to it."""
_log = logging.getLogger("reltask.database")


class Retries:
    """A bounded number of growing waits."""

    def __init__(self, *, rng: random.Random, attempts: int = 4, first: float = 1.0) -> None:
        if attempts < 0 or first < 0:
            raise UsageError("The number of retries and the first wait are not negative; 0 attempts never retries.")
        self._rng = rng
        self._attempts = attempts
        self._first = first

    def delay(self, failures: int) -> float | None:
        """Seconds to wait after this many failed tries; None: give up."""
        if failures > self._attempts:
            return None
        nominal: float = self._first * 2 ** (failures - 1)
        return nominal * (1 + JITTER * self._rng.random())


class Breaker:
    """Counts failures in a row, and decides which callers may send. Belongs to one event loop."""

    def __init__(self, *, failures: int = 5, reset: float = 30.0) -> None:
        if failures < 1 or reset < 0:
            raise UsageError("A breaker opens after at least 1 failure, and its reset time is not negative.")
        self.state: CircuitState = "closed"
        """Open lasts until a caller asks after the reset time: without callers there is nothing to try."""
        self._limit = failures
        self._reset = reset
        self.phase = Permit(0)
        """The permit of all who send now, while it is closed."""
        self.failures = 0
        """In a row, in this phase."""
        self._opened_at = 0.0
        self._probing = False

    def wait(self, now: float) -> float:
        """Seconds until a probe may be sent; 0 if that is now."""
        return 0.0 if self.state != "open" else max(0.0, self._opened_at + self._reset - now)

    def admit(self, now: float) -> Permit | None:
        """Ask to send. None: do not."""
        if self.state == "open" and self.wait(now) == 0:
            self._enter("half-open")
        if self.state == "open" or self._probing:
            return None
        self._probing = self.state == "half-open"
        return self.phase

    def answered(self, permit: Permit) -> None:
        """The database answered, if only to refuse: it is there."""
        if permit != self.phase:
            return
        self.failures = 0
        if self.state == "half-open":
            self._enter("closed")

    def failed(self, permit: Permit, now: float) -> None:
        """No answer came, or the database said that it cannot."""
        if permit != self.phase:
            return
        self.failures += 1
        if self.state == "half-open" or self.failures >= self._limit:
            self._opened_at = now
            self._enter("open")

    def abandoned(self, permit: Permit) -> None:
        """The sender gave up before it knew: nothing was learnt, and the next caller may probe."""
        if permit == self.phase:
            self._probing = False

    def _enter(self, state: CircuitState) -> None:
        self.state = state
        self.phase = Permit(self.phase + 1)
        self.failures = 0
        self._probing = False


class AskOnce:
    """What a store without a policy has in its place: every verb is sent once, at once."""

    state: CircuitState = "closed"

    async def call(
        self,
        verb: str,  # noqa: ARG002 - the signature is Policy's
        operation: Callable[[], Awaitable[T]],
        *,
        resend_ambiguous: bool,  # noqa: ARG002
        retry: bool = True,  # noqa: ARG002
    ) -> T:
        return await operation()


class Policy:
    """Retry and circuit breaker in front of one database. Belongs to one event loop, as its store does."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        attempts: int = 4,
        first: float = 1.0,
        breaker_failures: int = 5,
        breaker_reset: float = 30.0,
        on_change: Callable[[str], None] | None = None,
        on_retry: Callable[[str, ReltaskError, float], None] | None = None,
    ) -> None:
        """`attempts` counts the retries after the first try; `first` is the first wait, in seconds.

        `on_retry` is called with the verb, the error and the wait before each retry.
        """
        self._clock = clock
        self._retries = Retries(rng=rng, attempts=attempts, first=first)
        self._breaker = Breaker(failures=breaker_failures, reset=breaker_reset)
        self._on_change = on_change
        self._on_retry = on_retry
        self._reported: CircuitState = self._breaker.state

    @property
    def state(self) -> CircuitState:
        """The breaker's state."""
        return self._breaker.state

    async def call(
        self, verb: str, operation: Callable[[], Awaitable[T]], *, resend_ambiguous: bool, retry: bool = True
    ) -> T:
        """Send, and send again while that can help; at most `attempts` times more, or not at all without `retry`.

        `operation` sends once, ends within a time limit of its own, and does not call this method. Where an answer may
        have been lost, it is sent again only if `resend_ambiguous` says that sending twice is the same as sending once.
        From then on the AmbiguousError is what is raised, whatever the next error is: that one is about the last try,
        not about the earlier ones.
        """
        failures, breaker = 0, self._breaker
        lost: AmbiguousError | None = None
        while True:
            permit: Permit | None = None
            try:
                permit = breaker.phase if breaker.state == "closed" else self._admitted(verb)
                if self._reported != breaker.state:
                    self._report_state()
                result = await operation()
            except BaseException as error:
                if permit is not None:
                    self._failed(permit, error)
                if not retry or not isinstance(error, ReltaskError):
                    raise
                failures += 1
                lost = error if isinstance(error, AmbiguousError) else lost
                delay = self._delay(verb, error, failures, resend_ambiguous=resend_ambiguous)
                if delay is None:
                    if lost is None or lost is error:
                        raise
                    raise lost from error
            else:
                if breaker.failures or breaker.state != "closed":  # else it learns nothing from an answer
                    breaker.answered(permit)
                    self._report_state()
                _log.debug("%s answered; its SQL: reltask sql %s", verb, verb)
                return result
            await self._clock.sleep(delay)

    def _delay(self, verb: str, error: ReltaskError, failures: int, *, resend_ambiguous: bool) -> float | None:
        """How long to wait before the next try, which is reported; None: there is none."""
        again = (TransientError, AmbiguousError) if resend_ambiguous else TransientError
        if not isinstance(error, again):
            return None
        if isinstance(error, CircuitOpen) or self._breaker.state == "open":
            return None  # waiting here would end in a refusal: the caller knows better what to do meanwhile
        delay = self._retries.delay(failures)
        if delay is not None and self._on_retry is not None:
            self._on_retry(verb, error, delay)
        return delay

    def _admitted(self, verb: str) -> Permit:
        permit = self._breaker.admit(self._clock.monotonic())
        if permit is None:
            raise self._refusal(verb)
        return permit

    def _failed(self, permit: Permit, error: BaseException) -> None:
        """Say what the error means for the breaker."""
        if isinstance(error, TransientError | AmbiguousError):
            self._breaker.failed(permit, self._clock.monotonic())
        elif isinstance(error, ReltaskError):
            self._breaker.answered(permit)  # a conflict or a refusal is an answer: the database is there
        else:
            self._breaker.abandoned(permit)  # cancelled, or a bug of ours: says nothing about the database
        self._report_state()

    def _refusal(self, verb: str) -> CircuitOpen:
        wait = self._breaker.wait(self._clock.monotonic())
        when = f"The next try is allowed in {wait:.1f} s." if wait else "One try is under way; its answer decides."
        return CircuitOpen(f"{verb} was not sent: the database has stopped answering.", remedy=when)

    def _report_state(self) -> None:
        """Report a change of state, once."""
        if self._reported == self._breaker.state:
            return
        self._reported = self._breaker.state
        if self._on_change is not None:
            self._on_change(self._reported)
