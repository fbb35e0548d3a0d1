"""Decides for one candidate of one lease whether to try, to renew or to give up. It performs no I/O.

    waiting ── due, or a hint ──► Try ──► refused: wait for this one's turn
       ▲                           ├────► no answer: the same acquisition again, soon
       │                           └────► granted ──► Win ──► [trusted] ── every TTL/5 ──► Beat ──► renewed
       │                                                          │                         ├─► no answer: again, soon
       └─ unless `once` ◄─ Resign ◄── Lose ◄──────────────────────┴─ see below ◄────────────┴─► refused

**Trust.** The holder counts from *before* it sent its last acknowledged try or heartbeat, so a slow or lost answer can
only shorten the time for which it trusts its lease. It stops a margin before the database would grant the lease to
another candidate. It also stops after `rotate_after`, and when it has finished no work for `max_stall`. A lease that
was announced as lost is never renewed, and a grant whose answer came too late is resigned unused.

**Turns.** A lease cannot be acquired before it expires, so a candidate does not try earlier: about one try per TTL. If
few candidates wait, all of them try when it expires, one after the other in the order of their ranks; together they
send at most one try per *spacing*. If many wait, each has one turn in a period of one spacing per waiting candidate, by
the database's clock, so that they still send no more than that.

    lease ends ▼    0       1       2       3       4       0         ranks; one spacing from turn to turn
    ───────────┴────┴───────┴───────┴───────┴───────┴───────┴──► database time

So when a lease expires, the next turn of any candidate is at most one spacing away. The turn of a candidate that has
died stays empty until its place lapses, and a new candidate may share a turn with one that does not know it yet; then
the next turn is one spacing later.

**A start of many.** A candidate that tries first sees few others. So it asks again after some seconds, and again while
their number grows. A minute after the last one's start all know how many they are, and each has its own turn. Until
then each has tried about four times.

`now` and the answers are arguments, so that tests and the deterministic simulation run this same code.
"""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID

from msgspec import Struct

from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.pace import Pace

SPACING = (0.1, 2.0)
"""Seconds between two turns: a fifth of the TTL, within these bounds."""
FEW = 0.8
"""Candidates are few if one spacing for each of them adds up to at most this share of the TTL."""
FIRST = 2
"""How many candidates one that has not tried yet assumes."""
GROWN = 1.1
"""A candidate whose number has grown by more than this, since it knew it last, soon asks for it again."""
STEP = 0.02
"""Seconds from one rank to the next if all candidates try."""
HINTED = 10
"""How many waiting candidates try at once when they are notified that the lease was resigned."""
HINT_PAUSE = 0.1
"""The least seconds between two tries caused by notifications."""
RETRY_SHARE = 6
"""A heartbeat without an answer is sent again after this fraction of an interval."""
OUTAGE_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)

RESIGNED = "resigned"
ROTATED = "rotate_after has passed"
STALLED = "no work was finished for max_stall"
TAKEN = "the database says that this term is over"
UNRENEWED = "it could not be renewed in time"


class TryLease(Struct, frozen=True):
    """Ask for the lease."""

    request: LeaseRequest


class WinLease(Struct, frozen=True):
    """The lease was acquired in time."""

    term: Term
    answer: LeaseAnswer


class BeatLease(Struct, frozen=True):
    """Renew the lease now."""

    grant: Grant


class LoseLease(Struct, frozen=True):
    """Announce that the lease can no longer be trusted."""

    term: Term
    reason: str


class ResignLease(Struct, frozen=True):
    """Resign in the database, and notify the candidates that wait."""

    grant: Grant


LeaseAction = TryLease | WinLease | BeatLease | LoseLease | ResignLease


class Tenure(Struct):
    """One term of the lease, from its grant to its loss."""

    grant: Grant
    pace: Pace
    acknowledged: float
    """Monotonic time before the last acknowledged try or beat was sent."""
    next_beat: float
    progressed: float
    """When work was last finished; at first, when the lease was granted."""
    rotate_at: float
    max_stall: float
    lost: str | None = None
    gone: bool = False
    """The database has ended the term: there is nothing to resign."""

    @property
    def stop_at(self) -> float:
        """When the lease is lost unless a successful heartbeat, or finished work, comes first."""
        return min(self.pace.deadline(self.acknowledged), self.rotate_at, self.progressed + self.max_stall)

    def is_held(self, now: float) -> bool:
        return self.lost is None and now < self.stop_at

    def why(self, now: float) -> str:
        """Why the lease is lost at `now`."""
        if now >= self.pace.deadline(self.acknowledged):
            return UNRENEWED
        return ROTATED if now >= self.rotate_at else STALLED


def lease_pace(ttl: timedelta) -> Pace:
    """A heartbeat every fifth of the TTL; each may take a sixth of it, which is also the margin at the end."""
    seconds = ttl.total_seconds()
    return Pace(lock_timeout=seconds, heartbeat=seconds / 5, beat_timeout=min(5.0, seconds / 6), stop_grace=0.0)


def spacing_of(ttl: timedelta) -> float:
    """Seconds from one turn to the next."""
    least, most = SPACING
    return min(most, max(least, ttl.total_seconds() / 5))


def seconds_to_turn(answer: LeaseAnswer, *, rank: int, waiting: int, ttl: timedelta) -> float:
    """How long a refused candidate waits: until the lease can have ended, and then for its turn."""
    spacing = spacing_of(ttl)
    left = (answer.expires_at - answer.now).total_seconds()
    soonest = left if left > 0 else spacing / 2  # expired, but its row is still locked by a guarded transaction
    if waiting * spacing <= FEW * ttl.total_seconds():
        return soonest + rank * STEP
    period = spacing * waiting
    into = (answer.now.timestamp() + soonest - rank * spacing) % period
    return soonest + (period - into) % period


class Candidacy:
    """One candidate: waiting, holding, or retired."""

    def __init__(
        self,
        *,
        name: str,
        holder: str,
        ttl: timedelta,
        rng: random.Random,
        rotate_after: timedelta | None = None,
        max_stall: timedelta | None = None,
        once: bool = False,
        waits: bool = True,
    ) -> None:
        """`once`: retire after one term. Without `waits` the candidate is not registered as waiting."""
        self.pace = lease_pace(ttl)
        self.spacing = spacing_of(ttl)
        self.tenure: Tenure | None = None
        self.retired = False
        self.in_doubt = False
        """The answer to a try was lost: the lease may be held without this candidate's knowledge."""
        self._name, self._holder, self._ttl = name, holder, ttl
        self._rng = rng
        self._rotate_after = _seconds(rotate_after)
        self._max_stall = _seconds(max_stall)
        self._once = once
        self._waits = waits
        self._acquisition = self._new_acquisition()
        self._next_try = float("-inf")
        self._hinted_try = float("inf")
        self._last_hinted = float("-inf")
        self._place: tuple[int, int] | None = None
        self._failures = 0

    # Decisions

    def next_at(self) -> float | None:
        """The monotonic time of the next decision; None: there is none to make."""
        if self.tenure is not None:
            return None if self.tenure.lost else min(self.tenure.next_beat, self.tenure.stop_at)
        return None if self.retired else min(self._next_try, self._hinted_try)

    def tick(self, now: float) -> list[LeaseAction]:
        """All actions that are due at `now`."""
        tenure = self.tenure
        if tenure is None:
            return [] if self.retired or now < min(self._next_try, self._hinted_try) else [self._try(now)]
        if tenure.lost:
            return []
        if now >= tenure.stop_at:
            return self._lose(tenure, tenure.why(now), now)
        if now >= tenure.next_beat:
            tenure.next_beat = now + self.pace.heartbeat / RETRY_SHARE
            return [BeatLease(tenure.grant)]
        return []

    def retire(self, now: float) -> list[LeaseAction]:
        """Resign what is held, and try no more."""
        self.retired = True
        tenure, self.tenure = self.tenure, None
        if tenure is None:
            return []
        announced: list[LeaseAction] = []
        if not tenure.lost:
            tenure.lost = RESIGNED if now < tenure.stop_at else tenure.why(now)
            announced = [LoseLease(tenure.grant.term, tenure.lost)]
        return [*announced, *([] if tenure.gone else [ResignLease(tenure.grant)])]

    def settle_doubt(self) -> list[LeaseAction]:
        """One more try of a retired candidate, to learn whether it holds a lease that it must resign."""
        return [TryLease(self._request(waits=None))] if self.in_doubt and self.retired else []

    # Events

    def hint(self, now: float) -> bool:
        """A notification that the lease may be free. The first few try, one after the other, and write nothing."""
        if self.tenure is not None or self.retired or self._place is None or self._place[0] >= HINTED:
            return False
        soonest = max(now, self._last_hinted + HINT_PAUSE) + self._place[0] * STEP
        self._hinted_try = min(self._hinted_try, soonest)
        return True

    def worked(self, now: float) -> None:
        """Some work was finished."""
        if self.tenure is not None:
            self.tenure.progressed = now

    def answered(self, tried: TryLease, answer: LeaseAnswer, *, sent_at: float, now: float) -> list[LeaseAction]:
        """A try was answered: granted, granted too late, or refused."""
        self._failures, self.in_doubt = 0, False
        if answer.term is None:
            self._wait_for_turn(tried, answer, now)
            return []
        grant = Grant(term=Term(self._name, answer.term), acquisition=tried.request.acquisition)
        self._acquisition = self._new_acquisition()
        if self.retired or now >= self.pace.deadline(sent_at):
            self._next_try = now + self.spacing
            return [ResignLease(grant)]
        self.tenure = self._tenure(grant, sent_at, now)
        return [WinLease(grant.term, answer)]

    def unanswered(self, now: float, *, in_doubt: bool) -> float:
        """A try failed, or its answer was lost. Returns the seconds until the same acquisition is tried again."""
        self.in_doubt = self.in_doubt or in_doubt
        pause = OUTAGE_PAUSES[min(self._failures, len(OUTAGE_PAUSES) - 1)] * self._rng.uniform(0.5, 1.0)
        self._failures += 1
        self._next_try = now + pause
        return pause

    def beaten(self, beat: BeatLease, *, renewed: bool, sent_at: float, now: float) -> list[LeaseAction]:
        """A heartbeat was answered. A lease that was lost meanwhile stays lost, even if the database renewed it."""
        tenure = self.tenure
        if tenure is None or tenure.lost or tenure.grant != beat.grant:
            return []
        if not renewed:
            tenure.gone = True
            return self._lose(tenure, TAKEN, now)
        if now >= tenure.stop_at:
            return self._lose(tenure, tenure.why(now), now)
        tenure.acknowledged = sent_at
        tenure.next_beat = sent_at + self.pace.heartbeat
        return []

    # Internals

    def _try(self, now: float) -> TryLease:
        hinted = now < self._next_try
        if hinted:
            self._last_hinted = now
        self._hinted_try = float("inf")
        self._next_try = max(self._next_try, now + self.spacing)
        waits = None if hinted or not self._waits else self._waiting_time()
        return TryLease(self._request(waits=waits))

    def _request(self, *, waits: timedelta | None) -> LeaseRequest:
        return LeaseRequest(
            name=self._name, holder=self._holder, acquisition=self._acquisition, ttl=self._ttl, waits=waits
        )

    def _waiting_time(self) -> timedelta:
        """Until well after the next turn: a place must not lapse before it."""
        return timedelta(seconds=self._lifetime(waiting=FIRST if self._place is None else max(FIRST, self._place[1])))

    def _lifetime(self, *, waiting: int) -> float:
        """Seconds for which a place counts while this number of candidates waits."""
        return 2 * (self._ttl.total_seconds() + self.spacing * waiting)

    def _wait_for_turn(self, tried: TryLease, answer: LeaseAnswer, now: float) -> None:
        """Schedule the next try at this candidate's turn, or earlier if its place would lapse before.

        That happens if it did not know how many candidates wait when it chose the lifetime of its place. It also
        tries earlier if their number has grown: more may come, and a turn among too few comes too often.
        """
        lapses = float("inf")
        if tried.request.waits is not None:
            lapses = tried.request.waits.total_seconds()
            if self._place is not None and answer.waiting > GROWN * self._place[1]:
                lapses = min(lapses, self._lifetime(waiting=FIRST))
            self._place = (answer.rank, answer.waiting)
        rank, waiting = self._place or (0, 1)
        turn = seconds_to_turn(answer, rank=rank, waiting=waiting, ttl=self._ttl)
        self._next_try = now + (turn if turn < lapses else lapses * self._rng.uniform(0.5, 1.0))

    def _tenure(self, grant: Grant, sent_at: float, now: float) -> Tenure:
        return Tenure(
            grant=grant,
            pace=self.pace,
            acknowledged=sent_at,
            next_beat=sent_at + self.pace.heartbeat,
            progressed=now,
            rotate_at=now + self._rotate_after,
            max_stall=self._max_stall,
        )

    def _lose(self, tenure: Tenure, reason: str, now: float) -> list[LeaseAction]:
        tenure.lost = reason
        announced = LoseLease(tenure.grant.term, reason)
        if self._once:
            return [announced]  # the user's block still has to end: the lease is resigned after that
        self.tenure = None
        self._next_try = now + (self.spacing if reason == TAKEN else self.pace.lock_timeout)
        return [announced, *([] if tenure.gone else [ResignLease(tenure.grant)])]

    def _new_acquisition(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)


def _seconds(length: timedelta | None) -> float:
    return float("inf") if length is None else length.total_seconds()
