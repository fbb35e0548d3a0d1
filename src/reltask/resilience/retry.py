"""How long to wait before sending the same thing again.

    try ─ 1 s ─ try ─ 2 s ─ try ─ 4 s ─ try ─ 8 s ─ try ─ give up          each wait up to half as long again

The jitter only lengthens a wait, and by less than the next doubling. So waits always grow, a database that restarts is
never asked earlier than planned, and workers that failed together do not come back together.
"""

from __future__ import annotations

import random

from reltask.errors import UsageError

JITTER = 0.5
"""The largest share of a wait that chance adds to it."""


class Retries:
    """A bounded number of growing waits."""

    def __init__(self, *, rng: random.Random, attempts: int = 4, first: float = 1.0) -> None:
        if attempts < 0 or first < 0:
            raise UsageError("The number of retries and the first wait are not negative; 0 attempts never retries.")
        self._rng = rng
        self._attempts = attempts
        self._first = first

    def delay(self, failures: int) -> float | None:
        """Seconds to wait after that many failed tries; None: give up."""
        if failures > self._attempts:
            return None
        nominal: float = self._first * 2 ** (failures - 1)
        return nominal * (1 + JITTER * self._rng.random())
