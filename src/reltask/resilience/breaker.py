"""When to stop asking a database that does not answer.

              5 failures in a row              30 s later, somebody asks
    CLOSED ───────────────────────────► OPEN ────────────────────────────► HALF-OPEN
    all are sent                    none is sent                        one is sent: the probe
       ▲                                 ▲                                  │       │
       │                                 └───────── the probe fails ────────┘       │
       └────────────────────────────── the database answers ────────────────────────┘

The hard part is *one*. When the wait is over, every waiting caller comes at the same moment, and a breaker that only
looks at the time lets them all through. So a caller must ask for a permit, there is one permit while half-open, and
whoever holds it must say how it went: answered, failed, or abandoned, which gives the place to the next caller.

A permit carries the number of its phase. Something that was sent before the breaker opened may end much later; its
permit is then out of date, and its news changes nothing: only a probe can close an open breaker.

This is a pure decision: no clock, no lock, no await. The caller is one event loop and passes `now`.
"""

from __future__ import annotations

from typing import Literal, NewType

from reltask.errors import UsageError

CircuitState = Literal["closed", "open", "half-open"]

Permit = NewType("Permit", int)
"""The right to send once. Hand it back with `answered`, `failed` or `abandoned`."""


class Breaker:
    """Counts failures in a row, and decides who may send."""

    def __init__(self, *, failures: int = 5, reset: float = 30.0) -> None:
        if failures < 1 or reset < 0:
            raise UsageError("A breaker opens after at least 1 failure, and its reset time is not negative.")
        self._limit = failures
        self._reset = reset
        self._state: CircuitState = "closed"
        self._phase = 0
        self._failures = 0
        self._opened_at = 0.0
        self._probing = False

    @property
    def state(self) -> CircuitState:
        """Open lasts until somebody asks after the reset time: a breaker that nobody asks has nothing to try."""
        return self._state

    def wait(self, now: float) -> float:
        """Seconds until a probe may be sent; 0 if that is now."""
        return 0.0 if self._state != "open" else max(0.0, self._opened_at + self._reset - now)

    def admit(self, now: float) -> Permit | None:
        """Ask to send. None: do not."""
        if self._state == "open" and self.wait(now) == 0:
            self._enter("half-open")
        if self._state == "open" or self._probing:
            return None
        self._probing = self._state == "half-open"
        return Permit(self._phase)

    def answered(self, permit: Permit) -> None:
        """The database answered, if only to refuse: it is there."""
        if permit != self._phase:
            return
        self._failures = 0
        if self._state == "half-open":
            self._enter("closed")

    def failed(self, permit: Permit, now: float) -> None:
        """No answer came, or the database said that it cannot."""
        if permit != self._phase:
            return
        self._failures += 1
        if self._state == "half-open" or self._failures >= self._limit:
            self._opened_at = now
            self._enter("open")

    def abandoned(self, permit: Permit) -> None:
        """The sender gave up before it knew: nothing was learnt, and the next caller may probe."""
        if permit == self._phase:
            self._probing = False

    def _enter(self, state: CircuitState) -> None:
        self._state = state
        self._phase += 1
        self._failures = 0
        self._probing = False
