"""Decides which claims to renew, which to verify and which to give up. Does no I/O.

    watch ──► [trusted] ──── beat due ────► Beat ──► answered: renewed ──► trust counts from before the send
                  │                           │
                  │                           ├────► answered: row missing ──► Verify ──► still ours: beat again
                  │                           │                                    └────► not ours:   Abandon
                  │                           └────► no answer: beat again, soon
                  └──── deadline, or the third interval without a good beat ───────────► Abandon

A claim is renewed by its token from before it is sent until its answer is there, so that a slow answer or a blocked
event loop does not cost its rows. What such a beat renewed is trusted from then on, not from the claim.

A row that a beat did not renew is only *suspect*. The beat never waits for a row lock, so the row may be held by this
worker's own transaction, or be completed at this very moment. It counts as lost when a committed read says so and no
outcome of that run is on its way. An abandoned run is never renewed again.

The thread that beats and the deterministic simulation drive this same code: `now` and the answers are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from uuid import UUID

from msgspec import Struct

from reltask.model.job import BeatAnswer, Hold
from reltask.model.pace import Pace
from reltask.stores.store import BATCH

RETRY_SHARE = 6
"""A beat without an answer is sent again after this fraction of an interval."""


class SendBeat(Struct, frozen=True):
    """Renew these claims now, and look for the rows of claims whose answer was lost."""

    holds: tuple[Hold, ...]
    tokens: tuple[UUID, ...] = ()
    pending: tuple[UUID, ...] = ()
    """Tokens of claims that wait for their answer: renew their rows as well."""


class Verify(Struct, frozen=True):
    """Read whether these claims are still ours."""

    holds: tuple[Hold, ...]


class Abandon(Struct, frozen=True):
    """Stop this run's body: its claim can no longer be trusted."""

    hold: Hold
    reason: str
    lost: bool
    """Whether a committed read has shown that this worker no longer has the claim."""
    starved: bool = False
    """Whether no beat was sent in time: this process was starved or paused, and the database is not to blame."""


class ReleaseStrays(Struct, frozen=True):
    """Release these claims: the database made them for us, but the answer never arrived."""

    holds: tuple[Hold, ...]


class ReportFailures(Struct, frozen=True):
    """Another whole interval has passed without a good beat."""

    failures: int
    limit: int


BeatAction = SendBeat | Verify | Abandon | ReleaseStrays | ReportFailures


class Watch(Struct, gc=False):
    """One claim under watch."""

    hold: Hold
    pace: Pace
    acknowledged: float
    """Monotonic time before the last acknowledged claim or beat was sent."""
    next_beat: float
    """When to renew it: an interval after the last good beat, or sooner after one without an answer."""
    seen_ours: float = float("-inf")
    """When a committed read last showed it as ours. Beats that failed before do not count; the deadline stays."""
    renew_until: float | None = None
    """A run past its own timeout and grace is no longer renewed."""
    settling: bool = False
    """Its outcome is being written: it is no longer abandoned, but still renewed."""
    abandoned: bool = False
    failed: bool = False
    """The last beat that was sent for it failed."""

    @property
    def open(self) -> bool:
        """Whether its body may still have to be stopped."""
        return not (self.abandoned or self.settling)

    @property
    def stop_at(self) -> float:
        """When its body must be stopped unless a good beat comes first."""
        return min(self.pace.deadline(self.acknowledged), self.pace.abandon_at(self.known_ours))

    @property
    def known_ours(self) -> float:
        """When it was last known to be ours: failed beats count from here."""
        return max(self.acknowledged, self.seen_ours)

    def renewable(self, now: float) -> bool:
        """A body past its timeout is not renewed; a body that has ended is, until its outcome is recorded."""
        in_time = self.settling or self.renew_until is None or now < self.renew_until
        return in_time and not self.abandoned


@lru_cache(maxsize=64)
def _trust(pace: Pace) -> float:
    """Seconds from an acknowledged send to the deadline. Asked for every run before it begins."""
    return pace.deadline(0.0)


class Heartbeats:
    """The claims of one worker and what is known about them."""

    def __init__(self, *, sweep_interval: float) -> None:
        self._watches: dict[Hold, Watch] = {}
        self._unanswered: dict[UUID, float] = {}
        """Until when a claim with this token may land: its answer was lost. Oldest first."""
        self._pending: dict[UUID, float] = {}
        """Claims that wait for their answer, and when to renew their rows."""
        self._renewed_early: dict[Hold, float] = {}
        """Rows of such claims that a beat has renewed, and when that beat was sent."""
        self._sweep_interval = sweep_interval
        self._next_sweep: float | None = None
        self._failures = 0

    def __len__(self) -> int:
        return len(self._watches)

    # Called by the worker

    def watch(self, hold: Hold, pace: Pace, *, sent_at: float, renew_until: float | None = None) -> None:
        """A claim has been acknowledged; `sent_at` is when it had been asked for."""
        acknowledged = max(sent_at, self._renewed_early.pop(hold, sent_at))
        self._watches[hold] = Watch(hold, pace, acknowledged, acknowledged + pace.heartbeat, renew_until=renew_until)

    def too_late(self, holds: Iterable[Hold], now: float) -> set[Hold]:
        """Of these claims, those that may not begin any more: their deadline has passed."""
        watches = ((hold, self._watches.get(hold)) for hold in holds)
        return {hold for hold, watch in watches if watch is None or now >= watch.acknowledged + _trust(watch.pace)}

    def claim_sent(self, token: UUID, now: float) -> None:
        """A claim is about to be sent: from one interval on its rows are renewed, although they are not known yet."""
        self._pending[token] = now + self._sweep_interval

    def claim_answered(self, token: UUID) -> None:
        """Its rows are watched, or there are none."""
        self._pending.pop(token, None)
        if not self._pending:
            self._renewed_early.clear()

    def settling(self, hold: Hold, *, is_settling: bool = True) -> None:
        """The run's outcome is being written, so this worker may end the claim itself; or no longer is."""
        watch = self._watches.get(hold)
        if watch is not None:
            watch.settling = is_settling

    def forget(self, hold: Hold) -> None:
        """The run is over."""
        self._watches.pop(hold, None)

    def claim_unanswered(self, token: UUID, *, now: float, may_land_for: float) -> None:
        """The claim's answer was lost: look for strays.

        The claim may be applied up to `may_land_for` seconds from now. The search ends with the
        first answer to a beat that was sent after that time and found no stray. A beat without an
        answer proves nothing, and a row's own lock may last for hours.
        """
        self.claim_answered(token)
        self._unanswered[token] = now + may_land_for
        self._next_sweep = now

    # What to do

    def next_at(self, now: float) -> float | None:
        """The monotonic time of the next decision, or None while there is nothing to decide."""
        beats = [w.next_beat for w in self._watches.values() if w.renewable(max(now, w.next_beat))]
        stops = [w.stop_at for w in self._watches.values() if w.open]
        sweeps = [] if self._next_sweep is None else [self._next_sweep]
        return min([*beats, *stops, *sweeps, *self._pending.values()], default=None)

    def next_stop(self) -> float:
        """The monotonic time at which the next body has to be stopped unless a good beat comes first."""
        return min((w.stop_at for w in self._watches.values() if w.open), default=float("inf"))

    def tick(self, now: float, *, late: bool = False) -> list[BeatAction]:
        """Everything that is due by now. `late`: this process was kept from deciding when it was due."""
        failed = self._count_failures(now)  # first, so that the last failure is reported, too
        actions: list[BeatAction] = [
            self._abandon(watch, self._why(watch, now), lost=False, starved=late or not watch.failed)
            for watch in self._watches.values()
            if watch.open and now >= watch.stop_at
        ]
        actions += failed
        renewable = [w for w in self._watches.values() if w.renewable(now)]
        sweep_due = self._next_sweep is not None and now >= self._next_sweep
        pending_due = any(now >= due for due in self._pending.values())
        if sweep_due or pending_due or any(now >= w.next_beat for w in renewable):
            actions += self._beat(renewable, now)
        return actions

    # What the database answered

    def answered(self, beat: SendBeat, answer: BeatAnswer, *, sent_at: float) -> list[BeatAction]:
        """A beat was answered: trust renewed claims anew, verify missing ones, release strays."""
        for hold in answer.renewed:
            watch = self._watches.get(hold)
            if watch is None:
                if self._pending:
                    self._renewed_early[hold] = sent_at
            elif not watch.abandoned:
                watch.acknowledged = max(watch.acknowledged, sent_at)
                watch.next_beat = watch.acknowledged + watch.pace.heartbeat
                watch.failed = False
        for token in beat.pending:
            if token in self._pending:
                self._pending[token] = sent_at + self._sweep_interval
        suspects = tuple(h for h in beat.holds if h not in answer.renewed and self._is_open(h))
        for hold in suspects:  # another session may hold its row: if it stays so, that is no starvation
            self._watches[hold].failed = True
        strays = tuple(answer.strays)
        if not strays:  # else their release may fail, and be needed again
            self._end_search(beat.tokens, sent_at)
        return [*([Verify(suspects)] if suspects else []), *([ReleaseStrays(strays)] if strays else [])]

    def failed(self, beat: SendBeat) -> None:
        """A beat was sent, and the database did not answer, or refused it."""
        for hold in beat.holds:
            watch = self._watches.get(hold)
            if watch is not None:
                watch.failed = True

    def refused(self, beat: SendBeat) -> list[BeatAction]:
        """The database is busy and refused the beat.

        Whether the claims are ours can still be read.
        """
        self.failed(beat)
        return [Verify(beat.holds)] if beat.holds else []

    def verified(self, verify: Verify, still_ours: Iterable[Hold], *, sent_at: float) -> list[BeatAction]:
        """A committed read of the suspects: those that are not ours, and are not being settled, are lost."""
        ours = set(still_ours)
        for hold in ours & self._watches.keys():
            self._watches[hold].seen_ours = sent_at
        lost = [h for h in verify.holds if h not in ours and self._is_open(h)]
        return [self._abandon(self._watches[h], "another worker has the claim", lost=True) for h in lost]

    # Internal

    def _beat(self, watches: list[Watch], now: float) -> list[BeatAction]:
        for watch in watches:
            watch.next_beat = now + watch.pace.heartbeat / RETRY_SHARE
        holds = [watch.hold for watch in watches]
        pending = tuple(token for token, due in self._pending.items() if now >= due)
        self._pending.update(dict.fromkeys(pending, now + self._sweep_interval / RETRY_SHARE))
        first = SendBeat(tuple(holds[:BATCH]), self._sweep(now), pending)
        return [first, *(SendBeat(tuple(holds[i : i + BATCH])) for i in range(BATCH, len(holds), BATCH))]

    def _sweep(self, now: float) -> tuple[UUID, ...]:
        """The claims to look for now: up to BATCH."""
        if self._unanswered:
            self._next_sweep = now + self._sweep_interval
        return tuple(islice(self._unanswered, BATCH))

    def _end_search(self, tokens: Iterable[UUID], sent_at: float) -> None:
        """No rows of these claims were found: forget those that could not be applied after `sent_at`."""
        for token in tokens:
            if self._unanswered.get(token, float("inf")) <= sent_at:
                del self._unanswered[token]
        if not self._unanswered:
            self._next_sweep = None

    def _is_open(self, hold: Hold) -> bool:
        watch = self._watches.get(hold)
        return watch is not None and watch.open

    def _why(self, watch: Watch, now: float) -> str:
        if watch.pace.failures(watch.known_ours, now) >= watch.pace.abandon_after:
            return f"{watch.pace.abandon_after} heartbeats in a row failed"
        return "the lock's deadline has passed without a good heartbeat"

    def _abandon(self, watch: Watch, reason: str, *, lost: bool, starved: bool = False) -> Abandon:
        watch.abandoned = True
        return Abandon(watch.hold, reason, lost, starved)

    def _count_failures(self, now: float) -> list[BeatAction]:
        """Report each failed interval once, counted from the claim that has waited longest for a good beat."""
        waiting = [w for w in self._watches.values() if w.renewable(now)]
        if not waiting:
            self._failures = 0
            return []
        oldest = min(waiting, key=lambda w: w.known_ours)
        before, self._failures = self._failures, oldest.pace.failures(oldest.known_ours, now)
        return [ReportFailures(self._failures, oldest.pace.abandon_after)] if self._failures > before else []
