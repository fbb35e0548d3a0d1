"""Claims of jobs with limits beside each other, beside ends that are not committed, and beside a change of the limit.

A look is stopped when it has its snapshot and no lock yet: there another one may take the place.
"""

from __future__ import annotations

from reltask.model.job import ClaimRequest, Completion, Hold, NewJob
from reltask.model.limit import LimitRule
from tests.interleaving.driver import Driver, Session
from tests.interleaving.operations import ALIVE, LOCK, TOKEN, A, B, C, Operation, complete, one_off
from tests.interleaving.postgres_mutants import Mutant, mutant
from tests.interleaving.setups import LONG_AGO, Setup
from tests.interleaving.setups import committed as commit
from tests.interleaving.steps import committed, do, expect, opened, stopped

LIMIT = LimitRule(name="narrow", running=1, declaration="v1")
GREET: NewJob = one_off(A, limits=("narrow",))
OTHER: NewJob = one_off(B, task="other", limits=("narrow",))


def _request(worker: str, *tasks: str) -> ClaimRequest:
    return ClaimRequest(
        worker=worker,
        token=TOKEN,
        queues=["default"],
        tasks=list(tasks or ("greet", "other")),
        limit=5,
        lock_timeout=LOCK,
        isolated=True,
        alive_for=ALIVE,
    )


def look(*tasks: str, worker: str | None = None) -> Operation:
    """The session's worker, unless another one is named, asks for jobs with limits."""

    async def statement(session: Session) -> object:
        return await session.store.claim_limited(_request(worker or session.worker, *tasks))

    return Operation("look", (statement,), jobs=())


def change(running: int) -> Operation:
    """An operator changes the limit."""

    async def statement(session: Session) -> bool:
        rule = LimitRule(name="narrow", running=running, declaration="v1")
        return await session.store.write_limit(rule, seen="v1")

    return Operation("change limit", (statement,), jobs=())


def finish(hold: Hold) -> Operation:
    """Complete a job with limits, by the statement that frees its places itself."""

    async def statement(session: Session) -> object:
        return await session.store.complete_jobs("alice", [Completion(hold, has_limits=True)])

    return Operation("finish limited", (statement,), jobs=())


async def _prepare(session: Session) -> None:
    """Two jobs of two tasks that share a place. The key is counted already: another job has come and gone."""
    async with commit(session, LONG_AGO):
        await session.store.write_limit(LIMIT, seen=None)
        await session.store.enqueue_jobs([one_off(C, run_at=LONG_AGO, limits=("narrow",))])
    async with commit(session, LONG_AGO):
        (claim,) = (await session.store.claim_limited(_request("alice", "greet"))).claims
        await session.store.complete_jobs("alice", [Completion(claim.hold)])
    async with commit(session, LONG_AGO):
        await session.store.claim_limited(_request("alice", "greet"))  # counts the place that became free
    async with commit(session, LONG_AGO):
        await session.store.enqueue_jobs([GREET, OTHER])


SETUP = Setup("directed: two jobs at a limit of one", _prepare, [])


async def two_looks_at_one_key(driver: Driver) -> None:
    """Each has the mark of its own task, and neither job is claimed in the snapshot of the first: one wins."""
    async with stopped(look("greet"), driver.first) as answer:
        (claim,) = await committed(look("other"), driver.second)
        expect("the second has the place", claim.job_id, B)
    expect("the first finds it taken", await answer, [])
    expect("so do others", await committed(look(), driver.second), [])


async def an_end_that_is_not_committed(driver: Driver) -> None:
    """No look waits for it; from its commit on the place is free, and the job that waits is found."""
    (claim,) = await committed(look("greet", worker="alice"), driver.first)
    await _ends(driver, complete(claim.hold, again=False))


async def an_end_of_a_batch_that_is_not_committed(driver: Driver) -> None:
    """The same, where the statement frees the places of its jobs, not a trigger."""
    (claim,) = await committed(look("greet", worker="alice"), driver.first)
    await _ends(driver, finish(claim.hold))


async def _ends(driver: Driver, end: Operation) -> None:
    async with opened(driver.first):
        await do(end, driver.first)
        expect("the look does not wait, and the place is taken", await committed(look(), driver.second), [])
    expect("now it is free", [one.job_id for one in await committed(look(), driver.second)], [B])


async def a_raised_limit_beside_a_look(driver: Driver) -> None:
    """The look counts by the old limit or by the new one; the job that it left is found by the next."""
    await committed(look("greet"), driver.first)
    async with stopped(look(), driver.first) as answer:
        expect("changed", await committed(change(2), driver.second), True)
    late = [claim.job_id for claim in await answer]
    then = [claim.job_id for claim in await committed(look(), driver.second)]
    expect("found once", late + then, [B])


LIMIT_CASES = {
    "two looks at one key": (SETUP, two_looks_at_one_key),
    "an end of a limited job is not committed": (SETUP, an_end_that_is_not_committed),
    "an end of limited jobs is not committed": (SETUP, an_end_of_a_batch_that_is_not_committed),
    "a raised limit beside a look": (SETUP, a_raised_limit_beside_a_look),
}
COUNTED = """else coalesce(rule.running, 1000000) - coalesce(locked.running, 0)
                    + coalesce(wanted.freed, 0) end as room"""
FROM_SNAPSHOT = """else coalesce(rule.running, 1000000) - (
                    select count(*)
                    from reltask.jobs as job
                    where job.limit_key = needed.key and job.locked_by is not null
                )::integer end as room"""
LIMIT_MUTANTS: list[Mutant] = [
    mutant(
        "a look counts the claims of its snapshot",
        "claim_limited",
        "two looks at one key",
        (COUNTED, FROM_SNAPSHOT),
    ),
    mutant(
        "a look forgets the places that became free",
        "claim_limited",
        "an end of a limited job is not committed",
        ("sum(freed)::integer as freed from taken", "0 as freed from taken"),
    ),
    mutant(
        "ends of a batch free no place",
        "complete_limited",
        "an end of limited jobs is not committed",
        ("where removed.limit_key is not null and", "where false and"),
    ),
    mutant(
        "a raised limit leaves no mark",
        "write_limit",
        "a raised limit beside a look",
        ("    cross join parameters\n)\n\nselect name", "    cross join parameters\n    where false\n)\n\nselect name"),
    ),
]
