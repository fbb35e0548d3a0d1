"""Sending a statement to a database that is sometimes away. Used by the stores' adapters, and by nobody else.

    call ──► breaker: may I? ──► send ──► answered ───────────────────────────────► result, or the refusal
              ▲      │ no                  │ transient, or ambiguous and harmless to repeat
              │      ▼                     ▼
              │  CircuitOpen       retries: again? ── no ──► the error
              └──────── wait ──────────── yes

Two questions, two small classes without clock or await: `Breaker` decides whether to send at all, `Retries` whether and
when to send again. `Policy` asks both. Heartbeats do not pass here: a beat that waits behind a breaker is a lost lock.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from reltask.errors import AmbiguousError, CircuitOpen, ReltaskError, TransientError
from reltask.model.clock import Clock
from reltask.resilience.breaker import Breaker, CircuitState
from reltask.resilience.retry import Retries

__all__ = ["Breaker", "Policy", "Retries", "State"]

T = TypeVar("T")
_log = logging.getLogger("reltask.database")


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

        `on_retry` hears the verb, the error and the wait before each of them.
        """
        self._clock = clock
        self._retries = Retries(rng=rng, attempts=attempts, first=first)
        self._breaker = Breaker(failures=breaker_failures, reset=breaker_reset)
        self._on_change = on_change
        self._on_retry = on_retry
        self._told: CircuitState = self._breaker.state

    @property
    def state(self) -> CircuitState:
        """The breaker's state."""
        return self._breaker.state

    async def call(
        self, verb: str, operation: Callable[[], Awaitable[T]], *, resend_ambiguous: bool, retry: bool = True
    ) -> T:
        """Send, and send again while that can help; at most `attempts` times more, or not at all without `retry`.

        `operation` sends once, ends within a time limit of its own, and does not come back here. Where an answer may
        have been lost it is sent again only if `resend_ambiguous` says that doing it twice is doing it once. From then
        on the doubt is what is raised, whatever the error: a later one speaks of the last try, not of the earlier.
        """
        if not retry:
            return await self._send(verb, operation)
        failures = 0
        lost: AmbiguousError | None = None
        while True:
            try:
                return await self._send(verb, operation)
            except ReltaskError as error:
                failures += 1
                if isinstance(error, AmbiguousError):
                    lost = error
                delay = self._delay(error, failures, resend_ambiguous=resend_ambiguous)
                if delay is None and lost is not None and lost is not error:
                    raise lost from error
                if delay is None:
                    raise
                if self._on_retry is not None:
                    self._on_retry(verb, error, delay)
            await self._clock.sleep(delay)

    def _delay(self, error: ReltaskError, failures: int, *, resend_ambiguous: bool) -> float | None:
        """How long to wait before the next try; None: there is none."""
        again = (TransientError, AmbiguousError) if resend_ambiguous else TransientError
        if not isinstance(error, again):
            return None
        if isinstance(error, CircuitOpen) or self._breaker.state == "open":
            return None  # waiting here would end in a refusal: the caller knows better what to do meanwhile
        return self._retries.delay(failures)

    async def _send(self, verb: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Send once, if the breaker permits, and tell it how that went."""
        permit = self._breaker.admit(self._clock.monotonic())
        if permit is None:
            raise self._refusal(verb)
        try:
            self._tell()
            result = await operation()
        except (TransientError, AmbiguousError):
            self._breaker.failed(permit, self._clock.monotonic())
            raise
        except ReltaskError:
            self._breaker.answered(permit)  # a conflict or a refusal is an answer: the database is there
            raise
        except BaseException:
            self._breaker.abandoned(permit)  # cancelled, or a mistake of ours: says nothing about the database
            raise
        else:
            self._breaker.answered(permit)
            _log.debug("%s answered; its SQL: reltask sql %s", verb, verb)
            return result
        finally:
            self._tell()

    def _refusal(self, verb: str) -> CircuitOpen:
        wait = self._breaker.wait(self._clock.monotonic())
        when = f"The next try is allowed in {wait:.1f} s." if wait else "One try is under way; its answer decides."
        return CircuitOpen(f"{verb} was not sent: the database has stopped answering.", remedy=when)

    def _tell(self) -> None:
        """Report a change of state, once."""
        if self._told != self._breaker.state:
            self._told = self._breaker.state
            if self._on_change is not None:
                self._on_change(self._told)
