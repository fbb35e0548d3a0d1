"""Decides which claims to renew, which to verify and which to give up. Does no I/O.

    watch ──► [trusted] ──── beat due ────► Beat ──► answered: renewed ──► trust counts from before the send
                  │                           │
                  │                           ├────► answered: row missing ──► Verify ──► still ours: beat again
                  │                           │                                    └────► not ours:   Abandon
                  │                           └────► no answer: beat again, soon
                  └──── deadline, or the third interval without a good beat ───────────► Abandon

    a beat's answer says "cancelled", or a signal does and LookForCancels finds it ────────► StopCancelled

A claim is renewed by its token from before it is sent until its answer is there, so that a slow answer or a blocked
event loop does not cost its rows. What such a beat renewed is trusted from then on, not from the claim.

A row that a beat did not renew is only *suspect*. The beat never waits for a row lock, so the row may be held by this
worker's own transaction, or be completed at this very moment. It counts as lost when a committed read says so and no
outcome of that run is on its way. An abandoned run is never renewed again.

The thread that beats and the deterministic simulation drive this same code: `now` and the answers are arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import islice
from uuid import UUID

from msgspec import Struct

from reltask.model.job import BeatAnswer, Hold
from reltask.model.pace import Pace
from reltask.stores.store import BATCH

CANCEL_PAUSE = 0.25
"""Seconds between two looks for cancelled claims, after signals that name none."""
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


class LookForCancels(Struct, frozen=True):
    """Read which of these claims are cancelled: a signal says that some may be."""

    holds: tuple[Hold, ...]


class StopCancelled(Struct, frozen=True):
    """Stop this run's body: its slot was cancelled."""

    hold: Hold


class ReleaseStrays(Struct, frozen=True):
    """Release these claims: the database made them for us, but the answer never arrived."""

    holds: tuple[Hold, ...]


class ReportFailures(Struct, frozen=True):
    """Another whole interval has passed without a good beat."""

    failures: int
    limit: int


BeatAction = SendBeat | Verify | Abandon | LookForCancels | StopCancelled | ReleaseStrays | ReportFailures


class WatchedClaim(Struct, gc=False):
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
    cancelled: bool = False
    """Its body was asked to stop for that."""
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
    """Seconds from an acknowledged send to the deadline. Asked for every group of runs before it begins."""
    return pace.deadline(0.0)


def _ignore() -> None:
    """The default callback, until the beater sets its own."""


class Heartbeats:
    """The claims of one worker and what is known about them. The worker's loop and the beater's thread call it."""

    def __init__(self, *, sweep_interval: float) -> None:
        self.lock = threading.Lock()
        """Taken by the methods for the worker; the beater takes it around all others."""
        self.wake: Callable[[], None] = _ignore
        """Called when there is something to decide earlier than planned."""
        self.planned: float | None = None
        """When the beater decides next; None: it waits for a claim."""
        self._watches: dict[Hold, WatchedClaim] = {}
        self._unanswered: dict[UUID, float] = {}
        """Until when a claim with this token may land: its answer was lost. Oldest first."""
        self._pending: dict[UUID, float] = {}
        """Claims that wait for their answer, and when to renew their rows."""
        self._renewed_early: dict[Hold, float] = {}
        """Rows of such claims that a beat has renewed, and when that beat was sent."""
        self._sweep_interval = sweep_interval
        self._next_sweep: float | None = None
        self._failures = 0
        self._next_look: float | None = None
        """When to look for cancelled claims; None: there was no signal."""
        self._looked = float("-inf")
        self._suspected: set[UUID] | None = set()
        """The jobs that the signals named; None: any."""

    def __len__(self) -> int:
        return len(self._watches)

    # Called by the worker

    def watch(self, claims: Iterable[tuple[Hold, Pace, float | None]], *, sent_at: float) -> None:
        """Claims have been acknowledged; `sent_at` is when they had been asked for.

        Each comes with the time until which it is renewed, if its run has a timeout.
        """
        first = float("inf")
        with self.lock:
            for hold, pace, until in claims:
                acknowledged = max(sent_at, self._renewed_early.pop(hold, sent_at)) if self._renewed_early else sent_at
                next_beat = acknowledged + pace.heartbeat
                self._watches[hold] = WatchedClaim(hold, pace, acknowledged, next_beat, renew_until=until)
                first = min(first, next_beat)
            sooner = self.planned is None or first < self.planned
        if sooner:
            self.wake()

    def too_late(self, holds: Iterable[Hold], now: float) -> set[Hold]:
        """Of these claims, those that may not begin any more: their deadline has passed."""
        late, pace, trust = set(), None, 0.0
        with self.lock:
            for hold in holds:
                watch = self._watches.get(hold)
                if watch is not None and watch.pace is not pace:
                    pace, trust = watch.pace, _trust(watch.pace)
                if watch is None or now >= watch.acknowledged + trust:
                    late.add(hold)
        return late

    def claim_sent(self, token: UUID, now: float) -> None:
        """A claim is about to be sent: from one interval on its rows are renewed, although they are not known yet.

        This wakes nothing, because most answers come within a millisecond: the next tick sees it.
        """
        with self.lock:
            self._pending[token] = now + self._sweep_interval

    def claim_answered(self, token: UUID) -> None:
        """Its rows are watched, or there are none."""
        with self.lock:
            self._pending.pop(token, None)
            if not self._pending:
                self._renewed_early.clear()

    def settling(self, holds: Iterable[Hold], *, is_settling: bool = True) -> None:
        """These outcomes are being written, so this worker may end the claims itself; or no longer are."""
        with self.lock:
            for hold in holds:
                watch = self._watches.get(hold)
                if watch is not None:
                    watch.settling = is_settling

    def forget(self, holds: Iterable[Hold]) -> None:
        """These runs are over."""
        with self.lock:
            for hold in holds:
                self._watches.pop(hold, None)

    def claim_unanswered(self, token: UUID, *, now: float, may_land_for: float) -> None:
        """The claim's answer was lost: look for strays.

        The claim may be applied up to `may_land_for` seconds from now. The search ends with the
        first answer to a beat that was sent after that time and found no stray. A beat without an
        answer proves nothing, and a row's own lock may last for hours.
        """
        self.claim_answered(token)
        with self.lock:
            self._unanswered[token] = now + may_land_for
            self._next_sweep = now
        self.wake()

    def may_be_cancelled(self, job_ids: Collection[UUID], now: float) -> bool:
        """A signal: these jobs are cancelled, or any may be if none is named. Returns whether to look for them.

        At most one look per CANCEL_PAUSE is planned: where every write to the database is a signal, looks must not
        follow all of them.
        """
        with self.lock:
            ours = {hold.job_id for hold, watch in self._watches.items() if watch.open and not watch.cancelled}
            if ours.isdisjoint(job_ids) if job_ids else not ours:
                return False
            if not job_ids or self._suspected is None:
                self._suspected = None
            else:
                self._suspected.update(ours.intersection(job_ids))
            if self._next_look is None:
                self._next_look = now if job_ids else max(now, self._looked + CANCEL_PAUSE)
        self.wake()
        return True

    # Called by the beater, which holds the lock meanwhile

    def next_at(self, now: float) -> float | None:
        """The monotonic time of the next decision, or None while there is nothing to decide."""
        beats = [w.next_beat for w in self._watches.values() if w.renewable(max(now, w.next_beat))]
        stops = [w.stop_at for w in self._watches.values() if w.open]
        others = [at for at in (self._next_sweep, self._next_look) if at is not None]
        return min([*beats, *stops, *others, *self._pending.values()], default=None)

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
        if self._next_look is not None and now >= self._next_look:
            actions += self._look(now)
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
        return [
            *self.found_cancelled(answer.cancelled),
            *([Verify(suspects)] if suspects else []),
            *([ReleaseStrays(strays)] if strays else []),
        ]

    def found_cancelled(self, holds: Iterable[Hold]) -> list[BeatAction]:
        """The database says that these claims are cancelled. Each is reported once."""
        found: list[BeatAction] = []
        for hold in holds:
            watch = self._watches.get(hold)
            if watch is not None and watch.open and not watch.cancelled:
                watch.cancelled = True
                found.append(StopCancelled(hold))
        return found

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

    def _beat(self, watches: list[WatchedClaim], now: float) -> list[BeatAction]:
        for watch in watches:
            watch.next_beat = now + watch.pace.heartbeat / RETRY_SHARE
        holds = [watch.hold for watch in watches]
        pending = tuple(token for token, due in self._pending.items() if now >= due)
        self._pending.update(dict.fromkeys(pending, now + self._sweep_interval / RETRY_SHARE))
        first = SendBeat(tuple(holds[:BATCH]), self._sweep(now), pending)
        return [first, *(SendBeat(tuple(holds[i : i + BATCH])) for i in range(BATCH, len(holds), BATCH))]

    def _look(self, now: float) -> list[BeatAction]:
        suspected, self._suspected = self._suspected, set()
        self._next_look, self._looked = None, now
        holds = [
            hold
            for hold, watch in self._watches.items()
            if watch.open and not watch.cancelled and (suspected is None or hold.job_id in suspected)
        ]
        return [LookForCancels(tuple(holds[i : i + BATCH])) for i in range(0, len(holds), BATCH)]

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

    def _why(self, watch: WatchedClaim, now: float) -> str:
        if watch.pace.failures(watch.known_ours, now) >= watch.pace.abandon_after:
            return f"{watch.pace.abandon_after} heartbeats in a row failed"
        return "the lock's deadline has passed without a good heartbeat"

    def _abandon(self, watch: WatchedClaim, reason: str, *, lost: bool, starved: bool = False) -> Abandon:
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
