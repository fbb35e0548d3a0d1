"""The same worker, deliberately broken: the simulation must catch each mutant. `make simulate-mutants`.

A mutant changes the text of a statement, or one method of the worker, while its block is open. The
printed table names the invariant that caught each one, and how many seeds it took.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import sys
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from unittest import mock
from uuid import UUID

import msgspec

from reltask.errors import DatabaseError
from reltask.model.job import Claim, ClaimRequest, NewJob, Outcome, Release
from reltask.stores.sqlite import claim, values
from reltask.stores.sqlite.connections import Session
from reltask.worker import execute
from reltask.worker.heartbeat import Abandon, Heartbeats, Verify, WatchedClaim
from reltask.worker.poller import Poller
from reltask.worker.process import ProcessBody
from reltask.worker.run import Run
from reltask.worker.settle import Settler
from reltask.worker.transaction import Transactions
from reltask.worker.worker import Worker
from tests.simulation.broken import Broken, Mutant, method, sql
from tests.simulation.database import OPTIONS, Database
from tests.simulation.durable import is_durable
from tests.simulation.durable_mutants import DURABLE_MUTANTS
from tests.simulation.limit_mutants import LIMIT_MUTANTS
from tests.simulation.limits import is_limited
from tests.simulation.malformed import has_malformed
from tests.simulation.run import run_each
from tests.simulation.workload import has_elsewhere
from tests.simulation.world import Node, World, has_maintenance

_take = claim._take

# Statements


NO_FENCE = (("reltask_jobs.fence = batch.fence", "1 = 1"), (" jobs.fence = batch.fence", " 1 = 1"))
NO_OWNER = (("+reltask_jobs.locked_by = :worker", "1 = 1"), ("+jobs.locked_by = :worker", "1 = 1"))


def without_fence(verb: str) -> Broken:
    return lambda: sql(verb, *NO_FENCE)


def complete_without_fence() -> Any:
    return sql("complete_jobs", *NO_FENCE, ("(id, fence) in (select id, fence from", "id in (select id from"))


@contextmanager
def complete_without_owner() -> Iterator[None]:
    with sql("complete_jobs", *NO_OWNER, ("+locked_by = :worker", "1 = 1")), without_ledger_keys():
        yield


@contextmanager
def fail_without_owner() -> Iterator[None]:
    with sql("fail_jobs", *NO_OWNER), without_ledger_keys():
        yield


def without_ledger_keys() -> Any:
    """Remove the ledger's key, which refuses a second end of a run by itself, to test the statement."""
    return mock.patch.object(Database, "prepare", remove_ledger_keys)


def remove_ledger_keys(self: Database) -> None:
    for change in (
        "create table loose as select * from reltask_runs",
        "drop table reltask_runs",
        "alter table loose rename to reltask_runs",
    ):
        self.session.connection().execute(change)


def heartbeat_moves_the_start() -> Any:
    return sql(
        "heartbeat_jobs",
        ("set heartbeat_at = :now,\n    lock", "set heartbeat_at = :now, slot_started_at = :now,\n    lock"),
    )


def claim_forgets_the_first_start() -> Any:
    return sql("claim_jobs", ("coalesce(slot_started_at, :now)", ":now"))


def reclaim_without_recheck() -> Any:
    return sql(
        "reclaim_jobs",
        ("  and lock_expires_at < :now\n", ""),
        ("  and jobs.lock_expires_at < :now\n", ""),
        ("  and reltask_jobs.lock_expires_at < :now\n", ""),
    )


def claim_without_guard() -> Any:
    return sql(
        "claim_jobs", ("where id in (select value from json_each(:ids))\n  and locked_by is null", "where 1 = 1")
    )


def attempt_counted_at_failure() -> Any:
    return sql("claim_jobs", ("attempt = attempt + 1,", "attempt = attempt,"))


def heartbeat_by_id_alone() -> Any:
    return sql("heartbeat_jobs", *NO_FENCE[:1], *NO_OWNER[:1])


# The worker


def no_deadline(_watch: WatchedClaim) -> float:
    return float("inf")


def wall_clock(self: World, node: Node, policy: Any = None) -> Any:
    """Each process has a separate session, which uses the process's wall clock."""
    shared, self.database = self.database, copy.copy(self.database)
    self.database.session = Session(shared.path, OPTIONS, lambda: self.now() + node.wall_offset)
    try:
        return World_store(self, node, policy)
    finally:
        self.database = shared


World_store = World.store


def suspect_is_lost(self: Heartbeats, beat: Any, answer: Any, *, sent_at: float) -> list[Any]:
    actions = Heartbeats_answered(self, beat, answer, sent_at=sent_at)
    suspects = [hold for action in actions if isinstance(action, Verify) for hold in action.holds]
    return [self._abandon(self._watches[hold], "another worker has the claim", lost=True) for hold in suspects]


Heartbeats_answered = Heartbeats.answered


def release_at_once(self: Worker, abandons: Sequence[Abandon]) -> None:
    Worker_abandon(self, abandons)
    why = "released before its body ended"
    early = [Release(hold=abandon.hold, outcome=Outcome.ABANDONED, error=why) for abandon in abandons]
    self._loop.create_task(_quietly(self.store.release_jobs(self.id, early)))


async def _quietly(call: Awaitable[Any]) -> None:
    with suppress(DatabaseError):
        await call


Worker_abandon = Worker._abandon


def resend_blindly(self: World, job: NewJob) -> NewJob:
    return msgspec.structs.replace(job, id=UUID(int=self.rng.getrandbits(128), version=4))


async def ledger_not_asked(_self: Settler[Any], _settlements: Any, _answer: Any) -> dict[Any, Any]:
    return {}


async def held_is_refused(self: Settler[Any], settlements: Any, accepted: Any, *, doubtful: bool) -> Any:
    gone = [settlement for settlement in settlements if settlement.hold not in accepted]
    recorded = await self._recorded(gone, accepted) if doubtful else {}
    return {**dict.fromkeys(settlement.hold for settlement in gone), **recorded, **accepted}


@contextmanager
def commit_anyway() -> Iterator[None]:
    """On SQLite an open transaction blocks all other writers, so both checks of the fence must go."""

    async def seal(self: Transactions, run: Any, inner: Any, completion: Any, recording: Any) -> None:
        if recording is not None:
            await inner.record_steps(self._worker, recording)
            return
        self._heartbeats.settling([run.hold])
        if completion is not None:
            await inner.complete_job(self._worker, completion)

    with mock.patch.object(Transactions, "_check", mock.AsyncMock()), mock.patch.object(Transactions, "_seal", seal):
        yield


async def serve_nothing_else(self: Poller) -> None:
    self._waking.begin()
    if self._places.takes_isolated():
        await Poller_claim(self)
    else:
        self._waking.ended(0, self._clock.monotonic())


Poller_claim = Poller._claim


@contextmanager
def begin_whatever_the_deadline() -> Iterator[None]:
    """Neither is a claim renewed by its token, nor does a late answer keep its bodies from beginning."""
    with (
        mock.patch.object(Heartbeats, "claim_sent", return_value=None),
        mock.patch.object(Heartbeats, "too_late", return_value=set()),
    ):
        yield


def blocked_by_a_subscriber(self: World, node: Node, event: Any) -> None:
    """The subscriber runs on the heartbeat's thread, and takes its time."""
    self.heard(node, event)
    if not self.quiet:
        self.loop.pause(node.beat)
        self.loop.spawn("world", self.resume_later([node.beat], 8.0))


def starvation_never_counts(self: Worker, abandons: Sequence[Abandon]) -> None:
    Worker_abandon(self, [msgspec.structs.replace(abandon, starved=False) for abandon in abandons])


def not_past_its_timeout(self: WatchedClaim, now: float) -> bool:
    return not self.abandoned and (self.renew_until is None or now < self.renew_until)


def take_by_priority(transaction: Any, request: ClaimRequest, seen: Any) -> list[Claim]:
    return _take(transaction, msgspec.structs.replace(request, oldest=0), seen)


async def write_and_wait(self: Settler[Any], settlements: Any, verb: Any, *, doubtful: bool = False) -> Any:
    return await Settler_write(self, settlements, partial(verb, wait=True), doubtful=doubtful)


Settler_write = Settler._write


def moment_or_error(stored: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + stored * timedelta(microseconds=1)


@contextmanager
def rows_taken_as_they_are() -> Iterator[None]:
    with mock.patch.object(execute, "fault_of", return_value=None):
        yield


def go_on(_self: Run) -> None:
    """Whatever was asked of the run."""


def leave_alone(_self: ProcessBody) -> None:
    """The child goes on."""


ELSEWHERE_MUTANTS = [
    Mutant("a thread that asks is not stopped", method(Run, "check", go_on)),
    Mutant("a child is not killed after its grace", method(ProcessBody, "kill", leave_alone)),
]
MALFORMED_MUTANTS = [
    Mutant("a row that cannot be read fails its claim", lambda: mock.patch.object(values, "moment", moment_or_error)),
    Mutant("a row that cannot be run is begun", rows_taken_as_they_are),
]
MAINTENANCE_MUTANTS = [
    Mutant("a recount forgets the places in marks", lambda: sql("recount_limits", ("and freed <> 0", "and 1 = 0"))),
]
MUTANTS = [
    Mutant("no fence on complete", complete_without_fence),
    Mutant("fence but not owner on complete, and no key on the ledger", complete_without_owner),
    Mutant("no fence on fail", without_fence("fail_jobs")),
    Mutant("fence but not owner on fail, and no key on the ledger", fail_without_owner),
    Mutant("no fence on release", without_fence("release_jobs")),
    Mutant("heartbeat by id alone", heartbeat_by_id_alone),
    Mutant("heartbeat moves what the schedule counts from", heartbeat_moves_the_start),
    Mutant("a retry moves what the schedule counts from", claim_forgets_the_first_start),
    Mutant("reclaim without re-check", reclaim_without_recheck),
    Mutant("claim without its guard", claim_without_guard),
    Mutant("attempt counted at failure", attempt_counted_at_failure),
    Mutant("worker clock in a predicate", method(World, "store", wall_clock)),
    Mutant("no deadline", lambda: mock.patch.object(WatchedClaim, "stop_at", property(no_deadline))),
    Mutant("suspect treated as lost", method(Heartbeats, "answered", suspect_is_lost)),
    Mutant("release before the body ended", method(Worker, "_abandon", release_at_once)),
    Mutant("blind resend of an enqueue", method(World, "again", resend_blindly)),
    Mutant("lost answer taken for a lost lock", method(Settler, "_recorded", ledger_not_asked)),
    Mutant("held row taken for a lost lock", method(Settler, "_explain", held_is_refused)),
    Mutant("commit without looking at the fence", commit_anyway),
    Mutant("nothing is claimed beside an isolated job", method(Poller, "_claim", serve_nothing_else)),
    Mutant("a held row holds up its batch", method(Settler, "_write", write_and_wait)),
    Mutant("bodies begin on claims that are over", begin_whatever_the_deadline),
    Mutant("a subscriber blocks the heartbeats", method(World, "heard_soon", blocked_by_a_subscriber)),
    Mutant("starvation never counts as an attempt", method(Worker, "_abandon", starvation_never_counts)),
    Mutant("an ended body is not renewed past its timeout", method(WatchedClaim, "renewable", not_past_its_timeout)),
    Mutant(
        "a cancel survives the completion of its slot",
        lambda: sql("complete_jobs", ("case when schedule is null and cancel_slot", "case when cancel_slot")),
    ),
    Mutant(
        "a claim does not say that it is cancelled",
        lambda: sql("claim_jobs", ("cancel_slot = slot_no as cancelled", "0 as cancelled")),
    ),
    Mutant(
        "a claim overlooks paused tasks",
        lambda: sql("claim_jobs", ("value not in (select name from reltask_pauses where kind = 'task')", "1 = 1")),
    ),
    Mutant(
        "a claim overlooks paused queues",
        lambda: sql(
            "claim_jobs", ("wanted.value not in (select name from reltask_pauses where kind = 'queue')", "1 = 1")
        ),
    ),
    *ELSEWHERE_MUTANTS,
    *MALFORMED_MUTANTS,
    *MAINTENANCE_MUTANTS,
    Mutant("the oldest job has no place", lambda: mock.patch.object(claim, "_take", take_by_priority)),
    *DURABLE_MUTANTS,
    *LIMIT_MUTANTS,
]


class Catch(NamedTuple):
    """The invariant that caught a mutant, or None."""

    name: str
    invariant: str | None
    seeds: int


def hunt(index: int, limit: int) -> Catch:
    """Run seeds against one mutant until one breaks an invariant."""
    mutant = MUTANTS[index]
    with mutant.broken(), closing(run_each(itertools.islice(seeds_for(mutant), limit))) as verdicts:
        for number, verdict in enumerate(verdicts, start=1):
            if verdict.broken is not None:
                return Catch(mutant.name, verdict.broken, number)
    return Catch(mutant.name, None, limit)


def seeds_for(mutant: Mutant) -> Iterator[int]:
    """The histories that have what the mutant breaks."""
    for mutants, has_it in (
        (DURABLE_MUTANTS, is_durable),
        (LIMIT_MUTANTS, is_limited),
        (MALFORMED_MUTANTS, has_malformed),
        (ELSEWHERE_MUTANTS, has_elsewhere),
        (MAINTENANCE_MUTANTS, lambda seed: has_maintenance(seed) and is_limited(seed)),
    ):
        if mutant in mutants:
            return filter(has_it, itertools.count())
    return itertools.count()


def table(catches: list[Catch]) -> str:
    """The result as a Markdown table."""
    rows = ["| mutant | caught by | after seeds |", "|---|---|---|"]
    rows += [f"| {c.name} | {c.invariant or '**not caught**'} | {c.seeds} |" for c in catches]
    return "\n".join(rows)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    catches = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for catch in pool.map(hunt, range(len(MUTANTS)), [options.limit] * len(MUTANTS)):
            catches.append(catch)
            print(f"{catch.name}: {catch.invariant or 'NOT CAUGHT'} after {catch.seeds}", file=sys.stderr, flush=True)  # noqa: T201
    print(table(catches))  # noqa: T201 - this is what the command is for
    return 1 if any(catch.invariant is None for catch in catches) else 0


if __name__ == "__main__":
    sys.exit(main())
