"""When an idle worker looks for work, so that a thousand of them cost what ten cost. It performs no I/O.

A look is one claim statement. If every idle worker looked at every signal, a thousand would look a
thousand times per job. So a worker that is notified of work *draws*: it looks with probability
ANSWERS / n, where n counts the workers that looked in vain lately and have not filled their places
since; a full one has no place to offer, and does not count. Nor does one that serves other queues or
knows other tasks: it could look, but not take. A claim's answer reports n, and this worker's rank
among the n. So each kind of worker has its own draws and turns, and what follows is the cost of one.

    signal ──► won last, or draws ──► look at once           4 of n in the mean, and the last winner
                     │ no
                     └──► look at this worker's next *turn*  one of the n each TURN seconds

**Turns.** Time, by the database's clock, is cut into turns of half a second; turn number k belongs to
rank k modulo n. Whatever the draws were, and whatever worker has died, the next turn of a living
worker comes soon, and all turns together are two looks per second.

**Alarms.** The due time and the lock's end that the last answer reported are answered in the same
way when they come. The worker that has won last always looks at a due time. A worker that learned of
a due time at a look that it was drawn for is one of the few that know it: it looks with probability
1 / (1 + signals heard since), because each of those signals has informed as many others. The mean
number of looks is then 4 (1 + 1/2 + … + 1/s), about 4 ln s. A lock's end is known to those that
looked within a lock timeout before it; if polls are rarer than that, the probability is greater by
the same factor.

**A burst** spreads because a claim that fills a worker's places signals again. It asks for as many
answers as it claimed jobs, at most ANSWERS: each answer of four more, until nothing is due. Those that
are not drawn for such a signal plan no turn: they have one since the job was enqueued.

**A held row** is due, but another session has locked it, mostly for the moment of a claim. About
ANSWERS of n that see it look again soon, and then twice as long after; all others wait n times HELD
seconds, and so do the former in the end: one look per second in all.

**The watch.** The leader of the maintenance looks once a second, with a cheaper statement, for what
all others missed: something overdue and unclaimed, or a lock that has ended. If it finds any, it sends
one signal. What stays although it was signalled is asked for twice as urgently, three times. After
that no worker seems able to take it, and one is asked every WATCH_AGAIN seconds. No promise
depends on the watch: without a leader the turns and the polls do its work.

**Polls.** With signals a worker polls every max(poll, n TURN) seconds; in a fleet whose turns take longer
than a poll, at its first turn after half a round, or workers that were started together would poll
together. Without signals the turns are the polls: a worker looks every min(n TURN, LONGEST, poll) seconds, at its turn.

The idle cost can be computed. Looks per second of n idle workers, with the default poll of 60 s:

    workers                    1     10    100    200   1 000
    with signals: polls     0.02   0.17   1.67   2.00    2.00     n / max(60 s, n / 2 s)
    the watch               1.00   1.00   1.00   1.00    1.00     one look per second
    without signals         2.00   2.00   3.33   6.67   33.33     n / min(n / 2 s, 30 s), no watch

`maintenance.py` has the rest. Under load, with one signal per job, a job costs the look that claims
it, and in the mean ANSWERS looks in vain. A signal gets no answer with probability (1 - 4/n)^n, less
than 2 %; then the next turn comes within half a second.
"""

from __future__ import annotations

import random
from bisect import insort
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

from reltask.model.job import ClaimAnswer, Fleet, Overdue

ANSWERS = 4
"""How many workers answer a signal, in the mean."""
TURN = 0.5
"""Seconds from one worker's turn to the next one's."""
LONGEST = 30.0
"""Seconds between two looks of one worker, at most, where there are no signals."""
RIVAL_PAUSE = (0.05, 0.15)
"""Seconds, at least and at most, until the first further look at a due job that another session had locked."""
EXPIRY_PAUSE = (0.26, 0.4)
"""The same for a lock that has ended but was not reclaimed: a little longer than a store needs that looks twice."""
HELD = 1.0
"""Seconds per idle worker between two looks at what stays held."""
PATIENT = 30
"""After this many looks at what stays held the pause is the longest."""
DUE_SPREAD = (0.004, 0.064)
EXPIRY_SPREAD = 0.25
HINT_SPREAD = (0.005, 0.069)
"""Workers that wait for the same moment spread over this many seconds, to avoid a stampede. For a
due time, the worker that won last uses the first value, and a worker that lost uses the second: so
the last winner looks nearly alone."""
HINTS = 16
"""How many of the times that signals have named are remembered: the earliest."""
COUNT_EVERY = (5.0, 0.05)
"""A worker counts the fleet at most this often: seconds, and seconds per worker."""
WRITTEN_AFTER, WRITTEN_BELOW = 6.0, 0.7
"""A sign of life is written for sure if the last one is this many seconds old, and less than this share of the time
is left for which the worker wants to count as alive. The stores' own bounds are a little wider."""
RENEW = 0.8
"""The share of the time for which a worker counts as alive after which it looks, to say that it is."""
WATCH_AGAIN = 8
"""Seconds between two signals for what stays overdue although it was asked for."""
URGENT = 4
"""How often the watch asks before it takes a thing for one that no worker can take."""


class Due(NamedTuple):
    """What to do now."""

    reclaim: bool
    look: bool


class Waking:
    """Decides when one worker looks. Times are monotonic seconds."""

    def __init__(self, *, poll: float, lock_timeout: float, heartbeat: float, rng: random.Random) -> None:
        self.signals = True
        """Whether the database notifies workers of new jobs."""
        self.fleet = Fleet()
        self.more = False
        """Whether something may be due that the last look left, for lack of room."""
        self._poll = poll
        self._lock_timeout = lock_timeout
        self._heartbeat = heartbeat
        self._rng = rng
        self._offset = 0.0
        self._called = True
        self._poll_at = self._reclaim_at = -inf
        self._due_at = self._expiry_at = self._again_at = self._turn_at = inf
        self._hints: list[float] = []
        self._ahead = False
        """The last claim won, and no other worker was faster since."""
        self._drawn = self._learned = False
        """The next look, and the last one, are answers to a signal or an alarm."""
        self._heard = 0
        self._due_spread = DUE_SPREAD[0]
        self._awaited: datetime | None = None
        self._expected: datetime | None = None
        self._rival = self._stale = 0
        self._count_at = -inf
        self._promised_at, self._promise = -inf, 0.0

    # How often

    @property
    def round(self) -> float:
        """Seconds between two looks that nothing has caused."""
        turns = self.fleet.size * TURN
        return max(self._poll, turns) if self.signals else min(self._poll, turns, LONGEST)

    @property
    def alive_for(self) -> float:
        """Seconds for which the worker counts as alive after a sign of life."""
        return 2 * max(self.round, self._heartbeat) + 5

    def promise(self) -> timedelta:
        """How long the worker counts as alive after a sign of life. From any thread."""
        return timedelta(seconds=self.alive_for)

    def counts(self, now: float) -> bool:
        """Whether the next look should count the fleet."""
        return now >= self._count_at

    def turn_after(self, moment: float) -> float:
        """The next turn of this worker."""
        size, rank = self.fleet.size, self.fleet.rank
        period = size * TURN if self.signals else min(size * TURN, LONGEST)
        into = (moment + self._offset - rank * period / size) % period
        return moment + period - into

    # Decisions

    def next_at(self, *, free: bool) -> float:
        """When to decide again. Without a free place only the end of a lock counts."""
        soonest = min(self._reclaim_at, self._expiry_at)
        if not free:
            return soonest
        hinted = self._hints[0] if self._hints else inf
        return min(soonest, self._poll_at, self._due_at, self._again_at, self._turn_at, hinted)

    def decide(self, now: float, *, free: bool) -> Due:
        """What is due now."""
        reclaim = now >= self._reclaim_at
        if now >= self._expiry_at:
            self._expiry_at = inf
            reclaim = self._draw(ANSWERS * max(1.0, self.round / self._lock_timeout), now) or reclaim
        passed = min(self._due_at, self._again_at, self._hints[0] if self._hints else inf) <= now
        if not free:
            self.more = self.more or self._called or passed
            self._called = False
            return Due(reclaim, look=False)
        self._rival += now >= self._again_at
        look = self._called or self.more or reclaim or now >= min(self._poll_at, self._turn_at, self._again_at)
        if now >= self._due_at:
            self._due_at = inf
            known_to_few = self.fleet.size / (1 + self._heard) if self._learned else 0.0
            look = self._draw(max(ANSWERS, known_to_few), now, sure=self._ahead) or look
        while self._hints and self._hints[0] <= now:
            self._hints.pop(0)
            look = self._draw(ANSWERS, now, sure=self._ahead) or look
        return Due(reclaim, look)

    def signalled(self, now: float, *, seconds: float = 0.0, wanted: int | None = None) -> bool:
        """A signal: something is due now, or will be in this many seconds. Return whether to look now."""
        self._heard += 1
        if seconds > 0:
            insort(self._hints, now + seconds + self._rng.uniform(*HINT_SPREAD))
            del self._hints[HINTS:]
            return False
        if wanted is None:
            return self._draw(ANSWERS, now, sure=self._ahead)
        drawn = self._ahead or self._is_one_of(wanted)
        self._drawn = self._drawn or drawn
        return drawn

    def call(self) -> None:
        """Look, whatever the draws say. From any thread."""
        self._called = True

    def again(self, at: float) -> None:
        """Look again at this time."""
        self._again_at = min(self._again_at, at)

    def _draw(self, wanted: float, now: float, *, sure: bool = False) -> bool:
        """Whether this worker is one of the `wanted`. If not, it looks at its turn."""
        drawn = sure or self._is_one_of(wanted)
        if drawn:
            self._drawn = True
        else:
            self._turn_at = min(self._turn_at, self.turn_after(now))
        return drawn

    def _is_one_of(self, wanted: float) -> bool:
        return self._rng.random() * self.fleet.size < wanted

    # A look

    def begin(self) -> None:
        """A look begins: what is heard from now on is not answered by it."""
        self._called, self.more = False, False
        self._due_at = self._again_at = self._turn_at = inf
        self._hints.clear()
        self._learned, self._drawn = self._drawn, False
        self._heard = 0
        self._expected, self._awaited = self._awaited, None

    def answered(self, answer: ClaimAnswer, *, filled: bool, sent_at: float, now: float) -> None:
        """One claim of the look was answered. `filled`: it took as many as it asked for."""
        self._offset = answer.now.timestamp() - now
        self._rate(answer)
        left = self._promised_at + self._promise - sent_at
        if sent_at - self._promised_at > WRITTEN_AFTER and left < WRITTEN_BELOW * self.alive_for:
            self._promised_at, self._promise = sent_at, self.alive_for
        if answer.fleet is not None:
            self.fleet = answer.fleet
            least, each = COUNT_EVERY
            self._count_at = now + min(self.alive_for / 2, max(least, each * self.fleet.size))
        if filled:
            self.more, self._count_at = True, -inf  # it counts as idle no longer, until it says so again
        elif answer.next_due is not None:
            self._plan_due(answer.next_due, answer.now, now)
        self._plan_reclaim(answer, now)

    def limited(self, answer: ClaimAnswer, *, filled: bool, now: float) -> None:
        """A claim of jobs with limits was answered: there may be more, now or when the next token comes."""
        if filled:
            self.more = True
        elif answer.limited_at is None:
            return
        elif answer.limited_at > answer.now:
            self._plan_due(answer.limited_at, answer.now, now)
        else:
            self.again(now if answer.claims else now + self._rng.uniform(*RIVAL_PAUSE))

    def ended(self, claimed: int, now: float) -> None:
        """The look has ended."""
        if self._learned and not claimed:
            self._ahead = False
        if self._again_at == inf:
            self._rival = 0
        poll_at = now + self._poll
        if not self.signals:
            poll_at = min(poll_at, self.turn_after(now + min(TURN, self.round) / 4))
        elif self.round > self._poll:
            poll_at = self.turn_after(now + self.round / 2)
        renew_at = self._promised_at + RENEW * self._promise
        # What this look has not renewed, the next one at once would not, either: it made no claim because the queues
        # are full, and beats say that the worker lives; or the fleet has shrunk, and less was promised.
        self._poll_at = min(poll_at, renew_at) if renew_at > now else poll_at

    def reclaimed(self, now: float, *, all_of_them: bool) -> None:
        """A reclaim was answered."""
        self._reclaim_at = now + 1.5 * self.round if all_of_them else now
        self._stale += 1

    def _rate(self, answer: ClaimAnswer) -> None:
        """Spread wider after the expected due time has come and another worker was faster."""
        if answer.claims:
            self._ahead, self._due_spread, self._expected = True, DUE_SPREAD[0], None
        elif self._expected is not None and self._expected <= answer.now:
            self._ahead, self._due_spread = False, DUE_SPREAD[1]

    def _plan_due(self, due: datetime, database_now: datetime, now: float) -> None:
        """When it is worth looking again: at a due time, or soon after a look at a held row."""
        seconds = (due - database_now).total_seconds()
        if seconds <= 0:
            if not self._rival and not self._is_one_of(ANSWERS):
                self._rival = PATIENT
            self._again_at = min(self._again_at, now + self._pause(RIVAL_PAUSE, self._rival))
        else:
            self._due_at = min(self._due_at, now + seconds + self._rng.uniform(0, self._due_spread))
        self._awaited = min(due, self._awaited or due)

    def _plan_reclaim(self, answer: ClaimAnswer, now: float) -> None:
        """When the next lock ends. A lock that has ended is not postponed by further claims."""
        self._expiry_at = inf
        at_the_latest = now + 1.5 * self.round
        if answer.next_expiry is None:
            self._reclaim_at, self._stale = at_the_latest, 0
            return
        seconds = (answer.next_expiry - answer.now).total_seconds()
        if seconds > 0:
            self._expiry_at = now + seconds + self._rng.uniform(0, EXPIRY_SPREAD)
            self._reclaim_at, self._stale = at_the_latest, 0
        else:
            self._reclaim_at = min(self._reclaim_at, now + self._pause(EXPIRY_PAUSE, max(0, self._stale - 1)))

    def _pause(self, first: tuple[float, float], times: int) -> float:
        """Seconds until the next look at what another session holds: longer each time."""
        longest = HELD * self.fleet.size * self._rng.uniform(0.75, 1.25)
        return min(self._rng.uniform(*first) * 2.0 ** min(times, PATIENT), max(longest, first[1]))


class Watch:
    """What the leader signals, for all workers: see the module's docstring."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()
        self._times = 0

    def seen(self, overdue: Overdue) -> int:
        """How many answers to ask for; 0: send no signal. Called once per second."""
        found = (overdue.lanes, overdue.oldest, overdue.newest, overdue.marked)
        if not overdue.lanes and not overdue.marked:
            self._last = ()
            return 0
        self._times = self._times + 1 if found == self._last else 0
        self._last = found
        if self._times < URGENT:
            return int(ANSWERS * 2**self._times)
        return int(self._times % WATCH_AGAIN == 0)
