"""How long a failed run waits before it is tried again.

    delay    at_once: 0, then │ first · factor ⁿ, each ± jitter, never above cap
                              │                          ┌──────────  cap
                              │              ┌───────────┘
                              │      ┌───────┘
                              └──────┘

The jitter spreads jobs that failed together, also when they have reached the cap: the middle is then below the cap, so
that the longest wait with jitter is the cap itself. The caller supplies the random numbers, so tests are repeatable.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random

from msgspec import Struct

from reltask.errors import DeclarationError
from reltask.model.duration import Duration, parse_duration

_NOTHING = timedelta(0)


class Backoff(Struct, frozen=True, kw_only=True):
    """Waits that grow from `first` by `factor` up to `cap`, each varied by ± `jitter` of its length."""

    first: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    cap: timedelta = timedelta(hours=1)
    jitter: float = 0.25
    at_once: bool = False
    """Whether the first retry comes without a wait, before the growing waits."""

    def __post_init__(self) -> None:
        if not _NOTHING <= self.first <= self.cap:
            raise DeclarationError(
                f"backoff: first is {self.first}, cap is {self.cap}.", remedy="Write 0 ≤ first ≤ cap."
            )
        if not 1 <= self.factor < float("inf"):
            raise DeclarationError(f"backoff: factor {self.factor} is out of range.", remedy="Write 1 or more.")
        if not 0 <= self.jitter <= 1:
            raise DeclarationError(f"backoff: jitter {self.jitter} is out of range.", remedy="Write 0 to 1.")

    def delay(self, attempt: int, *, rng: Random) -> timedelta:
        """The wait after failed attempt number `attempt`, counted from 1."""
        growing = max(attempt, 1) - self.at_once
        if growing == 0:
            return _NOTHING
        seconds = self._middle(growing) * rng.uniform(1 - self.jitter, 1 + self.jitter)
        return min(timedelta(seconds=seconds), self.cap)

    def _middle(self, growing: int) -> float:
        ceiling = self.cap.total_seconds() / (1 + self.jitter)
        try:
            return min(self.first.total_seconds() * self.factor ** (growing - 1), ceiling)
        except OverflowError:
            return ceiling if self.first else 0.0


def one_off() -> Backoff:
    """For a job that runs once: about 5 s, 10 s, 20 s … up to an hour."""
    return Backoff()


def recurring(interval: timedelta | None = None) -> Backoff:
    """For a recurring job: at once, then about 1 s, 2 s, 4 s … up to 10 minutes, and never beyond the interval."""
    cap = timedelta(minutes=10) if interval is None else min(interval, timedelta(minutes=10))
    return Backoff(first=min(timedelta(seconds=1), cap), cap=cap, at_once=True)


def parse_backoff(value: Duration | Backoff | None) -> Backoff | None:
    """The value of `backoff=`: a duration means the same wait each time, None the default of the kind of job."""
    if value is None or isinstance(value, Backoff):
        return value
    try:
        wait = parse_duration(value, name="backoff")
    except ValueError as error:
        raise DeclarationError(f"{error} Or pass a Backoff.") from error
    return Backoff(first=wait, cap=wait, factor=1.0, jitter=0.0)
