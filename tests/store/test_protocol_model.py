"""The protocol against a model: any sequence of verbs, by several workers, with the clock moving both ways.

The model is the design in a few lines of Python; hypothesis looks for a sequence in which store and
model disagree. It includes late writes: every claim ever made may be presented again, by any
worker. Runs record waits and suspend, signals come, and marks are folded, in any order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reltask.model.durable import NewSignal, Recording
from reltask.model.job import Claim, Completion, Failure, Hold, Outcome, Release, State, Suspension
from reltask.stores.sqlite.connections import SqliteOptions
from reltask.stores.sqlite.store import SqliteStore
from tests.store.store_harness import LOCK, Now, new_job, recurring, request, step, waiting

T = TypeVar("T")
WORKERS = st.sampled_from(["alice", "bob"])
DELAYS = st.sampled_from([timedelta(0), timedelta(seconds=30)])
NAMES = st.sampled_from(["go", "stop"])
NEVER = datetime(8999, 12, 31, tzinfo=UTC)


class Mark(NamedTuple):
    """A signal that no worker has looked at yet."""

    at: datetime
    job_id: UUID
    slot_no: int
    name: str


class Row(msgspec.Struct, kw_only=True):
    """A job in the model."""

    recurring: bool
    nominal: datetime
    max_attempts: int | None
    not_before: datetime | None = None
    slot_no: int = 1
    fence: int = 0
    attempt: int = 0
    owner: str | None = None
    expires: datetime | None = None
    paused: bool = False
    dead: bool = False
    losses: int = 0
    suspended: bool = False
    wake_seq: int = 0
    waits: dict[str, bool] = msgspec.field(default_factory=dict)
    """The steps by the name of the signal that each waits for: whether it still does."""
    signals: int = 0
    """Sent to this slot."""

    @property
    def isolated(self) -> bool:
        return self.losses > 1

    @property
    def due(self) -> datetime:
        return self.not_before or self.nominal

    @property
    def state(self) -> State:
        if self.dead:
            return State.DEAD
        if self.owner is not None:
            return State.CLAIMED
        if self.paused:
            return State.PAUSED
        return State.SUSPENDED if self.suspended else State.READY

    def free(self) -> None:
        self.owner = self.expires = None


class Protocol(RuleBasedStateMachine):
    """Rules are verbs; the invariants compare everything that can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Now()
        options = SqliteOptions(confirm_stale=timedelta(0))
        self.store = SqliteStore(":memory:", inline=True, now=self.now, options=options)
        self.loop = asyncio.new_event_loop()
        self.rows: dict[UUID, Row] = {}
        self.ledger: dict[Hold, tuple[int, Outcome]] = {}
        self.claims: list[Claim] = []
        self.tokens: dict[Hold, UUID] = {}
        self.numbers = itertools.count(1)
        self.marks: list[Mark] = []
        self.do(self.store.open())

    def do(self, verb: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(verb)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.loop.close()

    # Time

    @rule(seconds=st.sampled_from([-3600, -1, 1, 29, 30, 121, 3600]))
    def time_passes(self, seconds: int) -> None:
        self.now.advance(seconds=seconds)

    # Producing

    @precondition(lambda self: len(self.rows) < 4)
    @rule(repeats=st.booleans(), delay=DELAYS, attempts=st.sampled_from([None, 1, 2]))
    def enqueue(self, repeats: bool, delay: timedelta, attempts: int | None) -> None:
        # Ids in order of creation: with random ones, hypothesis's replays would differ.
        id_ = UUID(int=next(self.numbers))
        make = recurring if repeats else new_job
        job = make(id=id_, key=str(id_), delay=delay, max_attempts=attempts)
        assert self.do(self.store.enqueue_jobs([job])) == {job.id}
        self.rows[job.id] = Row(recurring=repeats, nominal=self.now() + delay, max_attempts=attempts)

    # Claims

    @rule(worker=WORKERS, limit=st.integers(0, 3))
    def claim(self, worker: str, limit: int) -> None:
        free = (State.READY, State.SUSPENDED)
        due = {id_ for id_, row in self.rows.items() if row.state in free and row.due <= self.now()}
        isolated = {id_ for id_ in due if self.rows[id_].isolated}
        token = UUID(int=next(self.numbers))
        answer = self.do(self.store.claim_jobs(request(worker, token=token, limit=limit)))
        got = {claim.job_id for claim in answer.claims}
        assert len(got) == len(answer.claims) == min(limit, len(due - isolated) + min(len(isolated), 1))
        assert got <= due
        assert len(got & isolated) <= 1
        assert answer.marked == any(mark.at <= self.now() for mark in self.marks)
        for claim in answer.claims:
            row = self.rows[claim.job_id]
            row.owner, row.expires = worker, self.now() + LOCK
            row.fence, row.attempt, row.suspended = row.fence + 1, row.attempt + 1, False
            assert (claim.fence, claim.attempt, claim.slot_no) == (row.fence, row.attempt, row.slot_no)
            assert claim.steps == len(row.waits)
            self.claims.append(claim)
            self.tokens[claim.hold] = token

    def held(self, worker: str, claim: Claim) -> Row | None:
        """The row, if this worker's write under this fence must be accepted."""
        row = self.rows.get(claim.job_id)
        return row if row is not None and row.owner == worker and row.fence == claim.fence else None

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), worker=WORKERS)
    def heartbeat(self, data: st.DataObject, worker: str) -> None:
        claims = data.draw(st.lists(st.sampled_from(self.claims), unique_by=lambda claim: claim.hold))
        lost = sorted({self.tokens[claim.hold] for claim in data.draw(st.lists(st.sampled_from(self.claims)))})
        holds = [claim.hold for claim in claims]
        answer = self.do(self.store.heartbeat_jobs(worker, holds, alive_for=LOCK, tokens=lost))
        for claim in claims:
            row = self.held(worker, claim)
            assert (claim.hold in answer.renewed) == (row is not None)
            if row is not None:
                row.expires = self.now() + LOCK
        strays = [claim.hold for claim in self.claims if self.tokens[claim.hold] in lost and self.held(worker, claim)]
        assert sorted(answer.strays) == sorted(strays)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), worker=WORKERS, ahead=st.sampled_from([-60, 0, 60]), passed=st.integers(0, 2))
    def complete(self, data: st.DataObject, worker: str, ahead: int, passed: int) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        row = self.held(worker, claim)
        repeats = claim.schedule is not None
        following = self.now() + timedelta(seconds=ahead) if repeats else None
        skipped = tuple(self.now() + timedelta(seconds=n) for n in range(passed)) if repeats else ()
        settled = self.do(
            self.store.complete_jobs(worker, [Completion(hold=claim.hold, next_run_time=following, skipped=skipped)])
        )
        assert [accepted.hold for accepted in settled] == ([claim.hold] if row else [])
        if row is None:
            return
        self.ledger[claim.hold] = (row.slot_no, Outcome.SUCCEEDED)
        for n in range(1, len(skipped) + 1):
            self.ledger[Hold(claim.job_id, row.fence + n)] = (row.slot_no + n, Outcome.SKIPPED)
        if following is None:
            del self.rows[claim.job_id]
            return
        row.free()
        row.nominal = max(following, row.nominal + timedelta(microseconds=1))
        row.slot_no, row.fence = row.slot_no + 1 + len(skipped), row.fence + len(skipped)
        row.not_before, row.attempt, row.losses = None, 0, 0
        row.waits, row.signals = {}, 0

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), worker=WORKERS, delay=DELAYS)
    def fail(self, data: st.DataObject, worker: str, delay: timedelta) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        row = self.held(worker, claim)
        settled = self.do(self.store.fail_jobs(worker, [Failure(hold=claim.hold, error="boom", delay=delay)]))
        assert bool(settled) == (row is not None)
        if row is not None:
            self.ledger[claim.hold] = (row.slot_no, Outcome.FAILED)
            row.free()
            row.not_before, row.losses = self.now() + delay, 0
            row.dead = row.max_attempts is not None and row.attempt >= row.max_attempts
            assert settled[0].dead == row.dead

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), worker=WORKERS, delay=st.none() | DELAYS)
    def release(self, data: st.DataObject, worker: str, delay: timedelta | None) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        row = self.held(worker, claim)
        release = Release(hold=claim.hold, outcome=Outcome.SNOOZED, delay=delay)
        assert bool(self.do(self.store.release_jobs(worker, [release]))) == (row is not None)
        if row is not None:
            self.ledger[claim.hold] = (row.slot_no, Outcome.SNOOZED)
            row.free()
            row.attempt, row.losses = row.attempt - 1, 0
            row.not_before = row.not_before if delay is None else self.now() + delay

    # Durable functions

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), worker=WORKERS, name=NAMES, done=st.booleans())
    def record(self, data: st.DataObject, worker: str, name: str, done: bool) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        row = self.held(worker, claim)
        record = step(name) if done else waiting(name, signal=name)
        recording = Recording(hold=claim.hold, steps=(record,))
        assert bool(self.do(self.store.record_steps(worker, [recording]))) == (row is not None)
        if row is not None:
            row.waits[name] = row.waits.get(name, True) and not done
            row.attempt, row.losses = 1, 0

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), worker=WORKERS, behind=st.booleans(), delay=st.none() | DELAYS)
    def suspend(self, data: st.DataObject, worker: str, behind: bool, delay: timedelta | None) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        row = self.held(worker, claim)
        wake_at = None if delay is None else self.now() + delay
        seen = 0 if row is None else row.wake_seq - behind
        suspension = Suspension(hold=claim.hold, seen=seen, wake_at=wake_at)
        assert bool(self.do(self.store.suspend_jobs(worker, [suspension]))) == (row is not None)
        if row is not None:
            self.ledger[claim.hold] = (row.slot_no, Outcome.SUSPENDED)
            row.free()
            row.suspended, row.attempt, row.losses = True, row.attempt - 1, 0
            row.not_before = self.now() if behind else wake_at or NEVER

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), name=NAMES)
    def send(self, data: st.DataObject, name: str) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.rows)))
        signal = NewSignal(id=str(next(self.numbers)), name=name, value="1", job_id=id_)
        assert self.do(self.store.send_signals([signal])) == {signal.id: id_}
        self.rows[id_].signals += 1
        self.marks.append(Mark(self.now(), id_, self.rows[id_].slot_no, name))

    @rule(limit=st.integers(1, 3))
    def fold(self, limit: int) -> None:
        taken = sorted((mark for mark in self.marks if mark.at <= self.now()), key=lambda mark: mark.at)[:limit]
        assert self.do(self.store.fold_marks(limit=limit)) == len(taken)
        for mark in taken:
            self.marks.remove(mark)
            row = self.rows.get(mark.job_id)
            if row is not None and row.slot_no == mark.slot_no and row.suspended and row.waits.get(mark.name):
                row.not_before = min(row.due, self.now())
        for id_, slot_no in {(mark.job_id, mark.slot_no) for mark in taken}:
            row = self.rows.get(id_)
            if row is not None and row.slot_no == slot_no:
                row.wake_seq += 1

    @rule()
    def reclaim(self) -> None:
        lost = {Hold(reclaimed.job_id, reclaimed.fence) for reclaimed in self.do(self.store.reclaim_jobs())}
        expired = {id_: row for id_, row in self.rows.items() if row.expires is not None and row.expires < self.now()}
        assert lost == {Hold(id_, row.fence) for id_, row in expired.items()}
        for id_, row in expired.items():
            self.ledger[Hold(id_, row.fence)] = (row.slot_no, Outcome.LOST)
            row.free()
            row.losses += 1
            row.dead = row.max_attempts is not None and row.attempt >= row.max_attempts

    # Operators

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), verb=st.sampled_from(["pause", "resume", "now", "retry", "discard"]))
    def operate(self, data: st.DataObject, verb: str) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.rows)))
        row = self.rows[id_]
        free = row.owner is None
        match verb:
            case "pause":
                assert self.do(self.store.pause_job(id_)) == (not row.paused and not row.dead)
                row.paused = row.paused or not row.dead
            case "resume":
                assert self.do(self.store.resume_job(id_)) == (row.paused and not row.dead)
                row.paused = row.paused and row.dead
            case "now":
                assert self.do(self.store.run_job_now(id_)) == (free and not row.dead)
                row.not_before = min(row.due, self.now()) if free and not row.dead else row.not_before
            case "retry":
                assert self.do(self.store.retry_job(id_)) == row.dead
                if row.dead:
                    row.dead, row.attempt, row.losses, row.not_before = False, 0, 0, self.now()
            case _:
                assert self.do(self.store.discard_job(id_)) == free
                if free:
                    self.ledger[Hold(id_, row.fence + 1)] = (row.slot_no, Outcome.DISCARDED)
                    del self.rows[id_]

    # What must always hold

    @invariant()
    def rows_agree(self) -> None:
        views = {view.id: view for view in self.do(self.store.list_jobs())}
        assert views.keys() == self.rows.keys()
        for id_, row in self.rows.items():
            view = views[id_]
            assert (view.state, view.slot_no, view.fence, view.attempt) == (
                row.state,
                row.slot_no,
                row.fence,
                row.attempt,
            )
            assert (view.locked_by, view.lock_expires_at, view.isolated) == (row.owner, row.expires, row.isolated)
            assert (view.next_run_time, view.due_at) == (row.nominal, row.due)

    @invariant()
    def waits_agree(self) -> None:
        for id_, row in self.rows.items():
            waits = self.do(self.store.read_waits(id_, row.slot_no))
            assert waits is not None
            assert (waits.wake_seq, len(waits.signals)) == (row.wake_seq, row.signals)
            recorded = self.do(self.store.read_steps(id_, row.slot_no))
            assert {view.name: view.state == "waiting" for view in recorded} == row.waits

    @invariant()
    def ledger_agrees(self) -> None:
        runs = self.do(self.store.list_runs(limit=10_000))
        assert {Hold(run.job_id, run.fence): (run.slot_no, run.outcome) for run in runs} == self.ledger
        endings = [(run.job_id, run.slot_no) for run in runs if run.outcome.ends_slot]
        assert len(endings) == len(set(endings))

    @invariant()
    def fences_have_no_gaps(self) -> None:
        for id_, row in self.rows.items():
            ended = sorted(hold.fence for hold in self.ledger if hold.job_id == id_)
            assert ended == list(range(1, row.fence + (row.owner is None)))


Protocol.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestProtocol = pytest.mark.slow(Protocol.TestCase)
