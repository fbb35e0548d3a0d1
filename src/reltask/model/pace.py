"""Until when a worker may rely on a claim that it holds.

    database   ──────● heartbeat_at ───────────────── lock timeout ──────────────────●  others may take it
    worker     ──● sent ──● answered ─────────── trusts itself ─────────●◄── margin ──►
                  │                                                     │
                  └ monotonic, before sending                           └ deadline: the body is stopped here

The worker counts from *before* it sent the last acknowledged claim or heartbeat, so a slow or lost answer can only
shorten this time. It uses the timeout that the claim copied, so a change of settings cannot lengthen it. It subtracts
a margin, in which a body can still be stopped and a last heartbeat can still time out. All times are monotonic; the
wall clock decides nothing.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

MARGIN_SHARE = 0.1
"""The margin is at least this share of the lock timeout."""
SHORTEST = timedelta(milliseconds=500)
"""The shortest lock timeout or lease TTL allowed. A heartbeat of such a lock must be answered within 20 ms; with less,
ordinary answers would come too late, and bodies would be stopped and started again endlessly."""


class Pace(Struct, frozen=True, kw_only=True):
    """How often a claim is renewed, and when its holder gives up, in seconds."""

    lock_timeout: float
    heartbeat: float
    beat_timeout: float
    stop_grace: float
    abandon_after: int = 3

    @property
    def margin(self) -> float:
        """Time reserved before the lock expires: for clock drift, for a heartbeat in flight, for stopping the body."""
        return max(MARGIN_SHARE * self.lock_timeout, self.beat_timeout, self.stop_grace)

    @property
    def patience(self) -> float:
        """Seconds after the last good heartbeat after which `abandon_after` heartbeats have certainly failed."""
        return self.abandon_after * self.heartbeat + self.beat_timeout

    def deadline(self, acknowledged_send: float) -> float:
        """The monotonic instant at which the body must be stopped in any case."""
        return acknowledged_send + self.lock_timeout - self.margin

    def abandon_at(self, acknowledged_send: float) -> float:
        """The monotonic instant at which enough whole intervals have passed without a good beat."""
        return acknowledged_send + self.patience

    def failures(self, acknowledged_send: float, now: float) -> int:
        """How many heartbeats in a row have failed: whole intervals without a good one, not counting retries."""
        return max(0, int((now - acknowledged_send - self.beat_timeout) / self.heartbeat + 1e-9))

    def fault(self) -> str | None:
        """Why these times do not fit together, and what to change; None if they do."""
        room = self.lock_timeout - self.margin
        if min(self.lock_timeout, self.heartbeat, self.beat_timeout) <= 0:
            return "lock_timeout, heartbeat and beat_timeout must be greater than zero."
        if self.patience > room + 1e-9:
            return (
                f"{self.abandon_after} heartbeats of {self.heartbeat:g}s and a beat timeout of {self.beat_timeout:g}s "
                f"take {self.patience:g}s, but a lock of {self.lock_timeout:g}s leaves only {room:g}s before its "
                f"margin of {self.margin:g}s: make the lock timeout longer or the heartbeat shorter."
            )
        return None

    @classmethod
    def of(
        cls,
        lock_timeout: timedelta,
        *,
        heartbeat: timedelta | None = None,
        beat_timeout: timedelta | None = None,
        stop_grace: timedelta | None = None,
        abandon_after: int = 3,
    ) -> Pace:
        """A pace for this lock timeout; times not given are derived from it, at most 30 s, 5 s and 10 s."""
        seconds = lock_timeout.total_seconds()

        def given(value: timedelta | None, otherwise: float) -> float:
            return otherwise if value is None else value.total_seconds()

        return cls(
            lock_timeout=seconds,
            heartbeat=given(heartbeat, min(30.0, seconds / 4)),
            beat_timeout=given(beat_timeout, min(5.0, seconds / 24)),
            stop_grace=given(stop_grace, min(10.0, seconds / 12)),
            abandon_after=abandon_after,
        )
