"""The pure decisions about heartbeats: what is renewed, verified and abandoned, and when."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reltask.model.job import BeatAnswer, Hold
from reltask.model.pace import Pace
from reltask.stores.store import BATCH
from reltask.worker.heartbeat import Abandon, BeatAction, Heartbeats, ReleaseStrays, ReportFailures, SendBeat, Verify

PACE = Pace(lock_timeout=120.0, heartbeat=30.0, beat_timeout=5.0, stop_grace=10.0)
TOKEN = UUID(int=77)


def hold(number: int, fence: int = 1) -> Hold:
    return Hold(UUID(int=number), fence)


def renewing(*holds: Hold) -> BeatAnswer:
    return BeatAnswer(renewed=frozenset(holds), strays=[])


def watching(*holds: Hold, pace: Pace = PACE, renew_until: float | None = None) -> Heartbeats:
    """Claims that were requested at 0."""
    beats = Heartbeats(sweep_interval=pace.heartbeat)
    for one in holds:
        beats.watch([(one, pace, renew_until)], sent_at=0.0)
    return beats


def only(kind: type[BeatAction], actions: list[BeatAction]) -> list[BeatAction]:
    return [action for action in actions if isinstance(action, kind)]


def drive(beats: Heartbeats, until: float, *, answer_at: set[float] | None = None) -> list[tuple[float, BeatAction]]:
    """Tick when the logic asks for it; heartbeats sent at these times are answered at once, all others never."""
    done: list[tuple[float, BeatAction]] = []
    now = 0.0
    while (planned := beats.next_at(now)) is not None and planned <= until:
        now = max(now, planned)
        for action in beats.tick(now):
            done.append((now, action))
            if isinstance(action, SendBeat) and now in (answer_at or set()):
                beats.answered(action, renewing(*action.holds), sent_at=now)
            elif isinstance(action, SendBeat):
                beats.failed(action)
    return done


# Claims that wait for their answer


def test_claim_is_renewed_by_its_token_until_it_is_answered() -> None:
    """An answer may take longer than an interval: the rows are renewed although they are not known yet."""
    beats = Heartbeats(sweep_interval=30.0)
    beats.claim_sent(TOKEN, 0.0)
    assert beats.next_at(0.0) == 30.0
    (beat,) = [action for action in beats.tick(30.0) if isinstance(action, SendBeat)]
    assert beat == SendBeat((), pending=(TOKEN,))
    beats.answered(beat, renewing(hold(1)), sent_at=30.0)
    assert beats.next_at(30.0) == 60.0
    beats.watch([(hold(1), PACE, None)], sent_at=0.0)
    beats.claim_answered(TOKEN)
    assert beats.next_at(60.0) == 60.0, "its heartbeats go on from the last good one"
    assert beats.tick(61.0) == [SendBeat((hold(1),))]
    assert beats.too_late([hold(1)], 137.0) == set(), "trusted from the beat, not from the claim"


def test_answer_after_the_deadline_is_too_late() -> None:
    """A body does not begin on a claim that is over: another worker may have the slot."""
    beats = watching(hold(1))
    assert beats.too_late([hold(1)], 107.9) == set()
    assert beats.too_late([hold(1)], 108.0) == {hold(1)}
    assert beats.too_late([hold(2)], 0.0) == {hold(2)}, "not watched: released already"


def test_fast_answer_needs_no_beat() -> None:
    """A claim that is answered within the interval leaves nothing to decide."""
    beats = Heartbeats(sweep_interval=30.0)
    beats.claim_sent(TOKEN, 0.0)
    beats.claim_answered(TOKEN)
    assert beats.next_at(1.0) is None


# Whose fault an abandonment is


def abandoned(beats: Heartbeats, *, late: bool = False) -> Abandon:
    """The decision, long after every deadline."""
    (found,) = [action for action in beats.tick(200.0, late=late) if isinstance(action, Abandon)]
    return found


def test_starved_process_is_to_blame() -> None:
    """No beat was sent in time: the database has not failed, so the attempt counts."""
    assert abandoned(watching(hold(1))).starved


def test_silent_database_is_to_blame() -> None:
    """Beats were sent and not answered; but what a late process decides is its own fault."""
    beats = watching(hold(1))
    (beat,) = [action for action in beats.tick(30.0) if isinstance(action, SendBeat)]
    beats.failed(beat)
    assert not abandoned(beats).starved
    beats = watching(hold(1))
    beats.failed(beat)
    assert abandoned(beats, late=True).starved


def test_row_that_another_session_holds_is_no_starvation() -> None:
    """The beat was answered, and could not renew the row."""
    beats = watching(hold(1))
    (beat,) = [action for action in beats.tick(30.0) if isinstance(action, SendBeat)]
    beats.answered(beat, renewing(), sent_at=30.0)
    assert not abandoned(beats).starved


# Renewing


def test_heartbeat_runs_at_configured_interval() -> None:
    """A claim whose heartbeats are answered is renewed once per interval, counted from the last send."""
    beats = watching(hold(1))
    times = {30.0 * n for n in range(1, 11)}
    done = drive(beats, 300.0, answer_at=times)
    assert done == [(time, SendBeat((hold(1),))) for time in sorted(times)]


def test_ended_body_is_renewed_past_its_timeout() -> None:
    """Only a body that still runs is left to expire: an outcome on its way must not lose its claim, and run again."""
    beats = watching(hold(1), renew_until=40.0)
    assert not only(SendBeat, beats.tick(60.0))
    beats.settling([hold(1)])
    assert only(SendBeat, beats.tick(60.0)) == [SendBeat((hold(1),))]


def test_heartbeat_stops_when_run_ends() -> None:
    """A run that has ended is not renewed, and needs no decision."""
    beats = watching(hold(1))
    beats.forget([hold(1)])
    assert beats.next_at(0.0) is None
    assert beats.tick(1000.0) == []


def test_all_claims_share_one_beat() -> None:
    """When one claim is due, all are renewed with it: one statement for all of a worker's runs."""
    beats = watching(hold(1))
    beats.watch([(hold(2), PACE, None)], sent_at=20.0)
    assert beats.tick(30.0) == [SendBeat((hold(1), hold(2)))]


@given(count=st.integers(min_value=0, max_value=3500))
@settings(max_examples=20)
def test_beats_come_in_chunks_of_a_thousand(count: int) -> None:
    """No statement names more than 1000 claims, and none is left out or named twice."""
    beats = watching(*(hold(n) for n in range(count)))
    sent = [action.holds for action in beats.tick(30.0) if isinstance(action, SendBeat)]
    assert all(0 < len(holds) <= 1000 for holds in sent)
    assert [h for holds in sent for h in holds] == [hold(n) for n in range(count)]


def test_run_past_its_own_timeout_is_not_renewed() -> None:
    """Past its timeout and grace a run is renewed no more, so that a body that does not stop loses its lock."""
    beats = watching(hold(1), renew_until=70.0)
    done = drive(beats, 1000.0, answer_at={30.0, 60.0})
    assert [time for time, action in done if isinstance(action, SendBeat)] == [30.0, 60.0]
    assert [time for time, action in done if isinstance(action, Abandon)] == [60.0 + PACE.patience]


def test_settling_run_is_renewed_but_never_abandoned() -> None:
    """A body that has ended cannot be stopped: its claim is renewed until its outcome is written."""
    beats = watching(hold(1))
    beats.settling([hold(1)])
    done = drive(beats, 600.0)
    assert not only(Abandon, [action for _, action in done])
    assert only(SendBeat, [action for time, action in done if time > 500.0])


# Failing


def test_heartbeat_failure_increments_consecutive_failure_counter() -> None:
    """Each whole interval without a good beat is one failure, reported once."""
    done = drive(watching(hold(1)), 94.0)
    assert [action for _, action in done if isinstance(action, ReportFailures)] == [
        ReportFailures(1, 3),
        ReportFailures(2, 3),
    ]


def test_retries_inside_an_interval_are_not_failures() -> None:
    """A heartbeat without an answer is sent again soon; that makes many sends, but one failure per interval."""
    done = [action for _, action in drive(watching(hold(1)), 64.0)]
    assert len(only(SendBeat, done)) > 5
    assert only(ReportFailures, done) == [ReportFailures(1, 3)]


def test_three_consecutive_heartbeat_failures_trigger_abandonment() -> None:
    """At the third failure the body is stopped, with that reason: not before, not later."""
    done = drive(watching(hold(1)), 1000.0)
    assert [time for time, action in done if isinstance(action, Abandon)] == [95.0]
    assert [action for time, action in done if time == 95.0] == [
        Abandon(hold(1), "3 heartbeats in a row failed", lost=False),
        ReportFailures(3, 3),
    ]


def test_successful_heartbeat_resets_failure_counter() -> None:
    """Two failures, a success, two failures: nothing is abandoned, and the count starts again."""
    beats = watching(hold(1))
    done = drive(beats, 154.0, answer_at={70.0})
    assert [action for _, action in done if isinstance(action, ReportFailures)] == [
        ReportFailures(1, 3),
        ReportFailures(2, 3),
        ReportFailures(1, 3),
        ReportFailures(2, 3),
    ]
    assert not only(Abandon, [action for _, action in done])


def test_short_lock_is_abandoned_at_its_deadline() -> None:
    """A count of failures is not a deadline: if the lock ends first, its deadline decides."""
    pace = Pace(lock_timeout=60.0, heartbeat=30.0, beat_timeout=5.0, stop_grace=10.0)
    done = drive(watching(hold(1), pace=pace), 1000.0)
    assert [action.reason for _, action in done if isinstance(action, Abandon)] == [
        "the lock's deadline has passed without a good heartbeat"
    ]
    assert [time for time, action in done if isinstance(action, Abandon)] == [50.0]


# Suspects


def test_missing_row_is_verified_not_abandoned() -> None:
    """A row that a heartbeat did not renew may be locked by a transaction: only a committed read shows a loss."""
    beats = watching(hold(1), hold(2))
    (beat,) = beats.tick(30.0)
    assert isinstance(beat, SendBeat)
    assert beats.answered(beat, renewing(hold(2)), sent_at=30.0) == [Verify((hold(1),))]


def test_suspect_that_is_still_ours_goes_on() -> None:
    """A suspect that the read shows as ours is renewed again soon; the read does not extend its trust."""
    beats = watching(hold(1))
    assert only(SendBeat, beats.tick(30.0))
    assert beats.verified(Verify((hold(1),)), [hold(1)], sent_at=31.0) == []
    assert only(SendBeat, beats.tick(36.0))
    assert [a.hold for a in beats.tick(108.0) if isinstance(a, Abandon)] == [hold(1)]


def test_busy_database_is_no_failed_beat_while_the_claim_is_seen_to_be_ours() -> None:
    """A refused heartbeat is not counted while a read shows the claim as ours; the deadline stays."""
    beats = watching(hold(1))
    for now in (30.0, 60.0, 90.0):
        beat = next(action for action in beats.tick(now) if isinstance(action, SendBeat))
        (verify,) = beats.refused(beat)
        assert isinstance(verify, Verify)
        assert beats.verified(verify, [hold(1)], sent_at=now) == []
    assert not [a for a in beats.tick(107.0) if isinstance(a, Abandon)], "not at 95, the third failure"
    assert [a.hold for a in beats.tick(108.0) if isinstance(a, Abandon)] == [hold(1)], "but at the deadline"


def test_suspect_that_is_not_ours_is_lost() -> None:
    """What the committed read does not show as ours is lost, and its body is stopped at once."""
    beats = watching(hold(1))
    (lost,) = beats.verified(Verify((hold(1),)), [], sent_at=1.0)
    assert isinstance(lost, Abandon)
    assert (lost.hold, lost.lost) == (hold(1), True)
    assert beats.tick(30.0) == []


def test_suspect_that_is_settling_is_not_lost() -> None:
    """A run whose outcome is being written may have completed its own row: neither suspect nor lost."""
    beats = watching(hold(1))
    (beat,) = beats.tick(30.0)
    assert isinstance(beat, SendBeat)
    beats.settling([hold(1)])
    assert beats.answered(beat, renewing(), sent_at=30.0) == []
    assert beats.verified(Verify((hold(1),)), [], sent_at=1.0) == []


def test_forgotten_suspect_is_ignored() -> None:
    """A run that ended between heartbeat and read is not abandoned."""
    beats = watching(hold(1))
    beats.forget([hold(1)])
    assert beats.verified(Verify((hold(1),)), [], sent_at=1.0) == []


# Strays


def test_stray_is_released() -> None:
    """A row that this worker owns without knowing is released."""
    beats = watching()
    answer = BeatAnswer(renewed=frozenset(), strays=[hold(9)])
    assert beats.answered(SendBeat((), (TOKEN,)), answer, sent_at=0.0) == [ReleaseStrays((hold(9),))]


def test_lost_claims_are_searched_only_if_needed() -> None:
    """Only a claim whose answer was lost is searched for, by one of the heartbeats of a round."""
    many = [hold(number) for number in range(BATCH + 1)]
    beats = watching(*many)
    assert [beat.tokens for beat in beats.tick(30.0) if isinstance(beat, SendBeat)] == [(), ()]
    beats.claim_unanswered(TOKEN, now=31.0, may_land_for=120.0)
    assert [beat.tokens for beat in beats.tick(31.0) if isinstance(beat, SendBeat)] == [(TOKEN,), ()]


def test_lost_claim_is_searched_until_it_cannot_arrive_any_more() -> None:
    """A claim whose answer was lost may arrive late: search at once, then each interval, until its time has passed."""
    beats = watching()
    beats.claim_unanswered(TOKEN, now=10.0, may_land_for=120.0)
    times = [10.0 + 30.0 * n for n in range(5)]
    assert drive(beats, 10_000.0, answer_at=set(times)) == [(time, SendBeat((), (TOKEN,))) for time in times]
    assert beats.next_at(10_000.0) is None


def test_lost_claim_is_searched_until_a_search_was_answered() -> None:
    """A search without an answer does not count: however long the outage, one after it ends the search."""
    beats = watching()
    beats.claim_unanswered(TOKEN, now=0.0, may_land_for=120.0)
    looks = [time for time, action in drive(beats, 10_000.0, answer_at={30.0, 3600.0}) if isinstance(action, SendBeat)]
    assert looks == [30.0 * n for n in range(121)]


def test_answer_to_an_early_search_does_not_end_it() -> None:
    """The time of its sending counts, not that of its answer."""
    beats = watching()
    beats.claim_unanswered(TOKEN, now=0.0, may_land_for=120.0)
    (early,) = beats.tick(90.0)
    (last,) = beats.tick(120.0)
    assert isinstance(early, SendBeat)
    assert isinstance(last, SendBeat)
    beats.answered(early, renewing(), sent_at=90.0)
    assert beats.next_at(121.0) == 150.0
    beats.answered(last, renewing(), sent_at=120.0)
    assert beats.next_at(121.0) is None


def test_stray_is_searched_until_it_is_gone() -> None:
    """Releasing it may fail too: a search that still finds it is not the last."""
    beats = watching()
    beats.claim_unanswered(TOKEN, now=0.0, may_land_for=120.0)
    (beat,) = beats.tick(120.0)
    assert isinstance(beat, SendBeat)
    beats.answered(beat, BeatAnswer(renewed=frozenset(), strays=[hold(9)]), sent_at=120.0)
    assert beats.tick(150.0) == [SendBeat((), (TOKEN,))]


def test_one_search_is_for_at_most_a_thousand_claims() -> None:
    """However many answers an outage cost, a statement is bounded, and the oldest claims come first."""
    beats = watching()
    tokens = [UUID(int=number) for number in range(BATCH + 1)]
    for token in tokens:
        beats.claim_unanswered(token, now=0.0, may_land_for=120.0)
    done = drive(beats, 10_000.0, answer_at={300.0, 330.0})
    assert [action for time, action in done if time >= 300.0] == [
        SendBeat((), tuple(tokens[:BATCH])),
        SendBeat((), tuple(tokens[BATCH:])),
    ]


# Properties


class History:
    """A random history of a few claims: ticks, answers late, lost, partial or repeated, in any order."""

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw
        self.beats = Heartbeats(sweep_interval=30.0)
        self.now = 0.0
        self.open_beats: list[tuple[float, SendBeat]] = []
        self.open_reads: list[Verify] = []
        self.trusted: dict[Hold, float] = {}
        """When the last acknowledged claim or heartbeat of each run was sent."""
        self.abandoned: dict[Hold, float] = {}
        self.settling: set[Hold] = set()

    def run(self, steps: int) -> None:
        for number in range(self.draw.draw(st.integers(1, 4), label="claims")):
            until = self.draw.draw(st.one_of(st.none(), st.floats(1.0, 200.0)), label="renew until")
            self.beats.watch([(hold(number), PACE, until)], sent_at=0.0)
            self.trusted[hold(number)] = 0.0
        moves = [self.tick, self.answer, self.read, self.settle, self.lose]
        for _ in range(steps):
            self.draw.draw(st.sampled_from(moves), label="move")()
            self.check()

    def tick(self) -> None:
        """As the thread does it: at the planned time, or later."""
        planned = self.beats.next_at(self.now)
        if planned is None:
            return
        self.now = max(self.now, planned) + self.draw.draw(st.sampled_from([0.0, 0.0, 0.3, 7.0]), label="late")
        self.apply(self.beats.tick(self.now))

    def apply(self, actions: list[BeatAction]) -> None:
        for action in actions:
            if isinstance(action, Abandon):
                assert action.hold not in self.abandoned, "abandoned twice"
                assert action.hold not in self.settling
                self.abandoned[action.hold] = self.now
            elif isinstance(action, SendBeat):
                assert not set(action.holds) & set(self.abandoned), "renewed after it was abandoned"
                self.open_beats.append((self.now, action))
            elif isinstance(action, Verify):
                self.open_reads.append(action)

    def answer(self) -> None:
        if not self.open_beats:
            return
        index = self.draw.draw(st.integers(0, len(self.open_beats) - 1), label="which beat")
        sent_at, beat = self.open_beats.pop(index)
        renewed = [h for h in beat.holds if self.draw.draw(st.booleans(), label="renewed")]
        for one in renewed:
            if one not in self.abandoned:
                self.trusted[one] = max(self.trusted[one], sent_at)
        self.apply(self.beats.answered(beat, renewing(*renewed), sent_at=sent_at))

    def read(self) -> None:
        if self.open_reads:
            verify = self.open_reads.pop()
            ours = [h for h in verify.holds if self.draw.draw(st.booleans(), label="ours")]
            self.apply(self.beats.verified(verify, ours, sent_at=self.now))

    def settle(self) -> None:
        one = self.draw.draw(st.sampled_from(sorted(self.trusted)), label="settles")
        if one not in self.abandoned:
            self.settling.add(one)
            self.beats.settling([one])

    def lose(self) -> None:
        self.open_beats.clear()

    def check(self) -> None:
        """A decision is always planned no later than the earliest deadline of a run that can still be stopped."""
        open_runs = set(self.trusted) - set(self.abandoned) - self.settling
        planned = self.beats.next_at(self.now)
        for one in open_runs:
            assert planned is not None
            assert planned <= PACE.deadline(self.trusted[one])


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_deadline_holds_whatever_answers_come(data: st.DataObject) -> None:
    """Answers late, lost, partial or out of order: no run is renewed after abandonment, none outlives its trust."""
    history = History(data)
    history.run(steps=25)
    end = max(history.now, *(PACE.deadline(at) for at in history.trusted.values()))
    history.now = end
    history.apply(history.beats.tick(end))
    assert set(history.abandoned) | history.settling == set(history.trusted)


@given(sent=st.lists(st.floats(0.0, 90.0), min_size=1, max_size=10), lost=st.data())
def test_lost_answers_only_shorten_trust(sent: list[float], lost: st.DataObject) -> None:
    """A worker that misses some answers abandons no later than one that got them all."""

    def given_up(answered: list[float]) -> float:
        beats = watching(hold(1))
        for at in answered:
            beats.answered(SendBeat((hold(1),)), renewing(hold(1)), sent_at=at)
        return next(time for time, action in drive(beats, 1000.0) if isinstance(action, Abandon))

    some = [at for at in sent if lost.draw(st.booleans())]
    assert given_up(some) <= given_up(sent)


def test_late_answer_counts_from_its_send() -> None:
    """An answer that took long extends the trust from its sending, not from its arrival."""
    beats = watching(hold(1))
    (beat,) = beats.tick(30.0)
    assert isinstance(beat, SendBeat)
    beats.answered(beat, renewing(hold(1)), sent_at=30.0)  # it may arrive at 90: no decision depends on that time
    assert [time for time, action in drive(beats, 1000.0) if isinstance(action, Abandon)] == [125.0]


@pytest.mark.slow
@given(
    heartbeats=st.lists(st.floats(0.05, 30.0), min_size=1, max_size=4),
    untils=st.lists(st.one_of(st.none(), st.floats(0.0, 100.0)), min_size=4, max_size=4),
    sweep=st.booleans(),
)
@settings(deadline=None)
def test_next_at_is_exact(heartbeats: list[float], untils: list[float | None], *, sweep: bool) -> None:
    """At the planned time there is something to do, just before it there is not, and plans do not accumulate."""
    beats = Heartbeats(sweep_interval=30.0)
    for number, heartbeat in enumerate(heartbeats):
        pace = Pace(lock_timeout=4 * heartbeat, heartbeat=heartbeat, beat_timeout=heartbeat / 6, stop_grace=0.0)
        beats.watch([(hold(number), pace, untils[number])], sent_at=0.0)
    if sweep:
        beats.claim_unanswered(TOKEN, now=0.0, may_land_for=60.0)
    now, ticks = 0.0, 0
    while (planned := beats.next_at(now)) is not None:
        assert planned >= now
        early = now + (planned - now) * 0.999
        if now < early < planned:
            assert only(SendBeat, beats.tick(early)) == only(Abandon, beats.tick(early)) == []
        now = planned
        done = beats.tick(now)
        assert only(SendBeat, done) or only(Abandon, done), "woken for nothing"
        for beat in done:
            if isinstance(beat, SendBeat) and beat.tokens:
                beats.answered(beat, renewing(), sent_at=now)
        ticks += 1
        assert ticks < 10_000
    limit = sum(4 * 6 + 2 for _ in heartbeats) * 700
    assert ticks < limit


@pytest.mark.parametrize("late", [96.0, 10_000.0])
def test_paused_process_abandons_first(late: float) -> None:
    """After a pause past the deadline the first decision is to stop the body, not to renew its claim."""
    beats = watching(hold(1))
    actions = beats.tick(late)
    assert isinstance(actions[0], Abandon)
    assert not only(SendBeat, actions)
