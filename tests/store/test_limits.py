"""Limits: never more claims than places, never more starts than tokens, and nothing waits while there is room."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from reltask.model.audit import Miscount
from reltask.model.job import Claim, ClaimAnswer, Completion, Failure, Hold, NewJob, Outcome
from reltask.model.limit import LimitRule, Rate
from reltask.stores.store import Store
from tests.store.store_harness import START, StoreHarness, new_job, recurring, request, seen, waiting

SECOND = timedelta(seconds=1)


async def declare(harness: StoreHarness, name: str = "smtp", running: int | None = 2, **fields: Any) -> None:
    """Declare a limit, in the place of an older one."""
    rules = {rule.name: rule.declaration for rule in await harness.store.read_limits()}
    if "rate" in fields:
        fields = {"burst": 1, **fields, "rate": Rate.parse(fields["rate"])}
    rule = LimitRule(name=name, running=running, declaration=f"v{len(rules)}{running}{fields}"[:100], **fields)
    assert await harness.store.write_limit(rule, seen=rules.get(name))


async def look(harness: StoreHarness, worker: str = "alice", **fields: Any) -> ClaimAnswer:
    """One look at the limits, for ten jobs."""
    return await harness.store.claim_limited(request(worker, **{"limit": 10, **fields}))


async def claims(harness: StoreHarness, worker: str = "alice", **fields: Any) -> list[Claim]:
    """All that can be claimed now: looks until no mark is due."""
    found: list[Claim] = []
    for _ in range(50):
        answer = await look(harness, worker, **fields)
        found += answer.claims
        if answer.limited_at is None or answer.limited_at > answer.now:
            await checked(harness)
            return found
    raise AssertionError("marks that are never used up")


async def checked(harness: StoreHarness) -> None:
    """The places are counted right."""
    assert list(await harness.store.audit_limits()) == []


async def jobs(harness: StoreHarness, count: int, **fields: Any) -> list[UUID]:
    """Insert jobs with a limit, a microsecond apart."""
    added = []
    for _ in range(count):
        added += await harness.add(new_job(**{"limits": ("smtp",), **fields}))
        harness.now.advance(microseconds=1)
    return added


# Places


async def test_no_more_claims_than_places(harness: StoreHarness) -> None:
    """The first two of three jobs are claimed, in order; the third when one of them has ended."""
    await declare(harness)
    first, second, third = await jobs(harness, 3)
    found = await claims(harness)
    assert [claim.job_id for claim in found] == [first, second]
    assert await claims(harness, "bob") == []
    assert await harness.complete(found[0])
    assert [claim.job_id for claim in await claims(harness, "bob")] == [third]


async def test_a_plain_claim_leaves_them_alone(harness: StoreHarness) -> None:
    """Only `claim_limited` takes a job that has a limit; `claim_jobs` says that there are some."""
    await declare(harness)
    await jobs(harness, 1)
    answer = await harness.claim()
    assert (answer.claims, answer.next_due, answer.limited_at) == ([], None, START)
    assert len(await claims(harness)) == 1
    assert (await harness.claim()).limited_at is None


async def test_jobs_of_one_lane_with_and_without_a_limit(harness: StoreHarness) -> None:
    """A plain claim takes those without; they have the same task, queue, priority and due time."""
    await declare(harness, running=1)
    plain = [new_job() for _ in range(3)]
    await harness.add(*(job for one in plain for job in (one, new_job(limits=("smtp",)))))
    for oldest in (0, 1):
        found = (await harness.claim(limit=10, oldest=oldest)).claims
        assert {claim.job_id for claim in found} <= {job.id for job in plain}
        for claim in found:
            assert await harness.release(claim)
    assert len(await claims(harness)) == 1


async def test_jobs_without_limits_are_not_claimed_by_a_look(harness: StoreHarness) -> None:
    """They have no key."""
    await harness.add(new_job())
    assert (await look(harness)).claims == []
    assert (await harness.claim()).limited_at is None


@pytest.mark.parametrize("end", ["complete", "together", "recur", "fail", "die", "release", "suspend", "lose", "chunk"])
async def test_each_end_of_a_claim_frees_its_place_once(harness: StoreHarness, end: str) -> None:
    """Whatever ends it: the next job starts, one and not two."""
    await declare(harness, running=1)
    job = recurring if end == "recur" else new_job
    await harness.add(job(limits=("smtp",), max_attempts=1 if end == "die" else None))
    (claim,) = await claims(harness)
    await jobs(harness, 3)
    assert await claims(harness) == []
    await _end(harness, claim, end)
    assert len(await claims(harness)) == 1
    assert await claims(harness) == []


async def _end(harness: StoreHarness, claim: Claim, end: str) -> None:
    far = timedelta(days=1)
    if end == "complete":
        assert await harness.complete(claim)
    elif end == "together":
        assert await harness.complete(claim, has_limits=True)
    elif end == "recur":
        assert await harness.complete(claim, next_run_time=START + far)
    elif end in ("fail", "die"):
        (settled,) = await harness.store.fail_jobs("alice", [Failure(hold=claim.hold, error="no", delay=far)])
        assert settled.dead is (end == "die")
    elif end == "release":
        assert await harness.release(claim, delay=far)
    elif end == "suspend":
        assert await harness.suspend(claim, wake_at=START + far)
    elif end == "lose":
        await harness.store.pause_job(claim.job_id)
        await harness.lose(claim)
    else:
        async with harness.store.transaction(timeout=timedelta(seconds=5)) as transaction:
            assert await transaction.complete_job("alice", Completion(claim.hold))


async def test_ends_of_one_batch_free_what_they_took(harness: StoreHarness) -> None:
    """Each key has one place more for each of its jobs, but none for a claim that was lost."""
    await declare(harness, "smtp", running=3)
    await declare(harness, "host", running=4)
    both = await jobs(harness, 2, limits=("smtp", "host"))
    await jobs(harness, 1)
    found = {claim.job_id: claim.hold for claim in await claims(harness)}
    await harness.add(new_job())
    plain = await harness.claim_one()
    (third,) = found.keys() - {*both}
    ends = [Completion(found[job_id], has_limits=True) for job_id in both]
    ends += [Completion(Hold(third, 2), has_limits=True), Completion(plain.hold)]
    assert len(await harness.store.complete_jobs("alice", ends)) == 3
    await checked(harness)
    following = await jobs(harness, 9)
    assert [claim.job_id for claim in await claims(harness)] == following[:2]
    await jobs(harness, 9, limits=("host",))
    assert len(await claims(harness)) == 4


async def test_jobs_of_one_batch_are_found_at_their_times(harness: StoreHarness) -> None:
    """They share a key, and only some are due."""
    await declare(harness, running=9)
    later = new_job(limits=("smtp",), delay=SECOND)
    await harness.add(*(new_job(limits=("smtp",)) for _ in range(3)), later, new_job())
    assert len((await look(harness)).claims) == 3
    assert (await look(harness)).limited_at == START + SECOND
    harness.now.advance(seconds=1)
    assert [claim.job_id for claim in await claims(harness)] == [later.id]


async def test_many_marks_of_a_full_key_keep_no_look_from_other_keys(harness: StoreHarness) -> None:
    """A look for a single job, behind forty marks of a full key, each left by an enqueue of its own."""
    await declare(harness, running=0)
    await declare(harness, "host", running=1)
    await jobs(harness, 40)
    (other,) = await jobs(harness, 1, limits=("host",))
    found = [*(await look(harness, limit=1)).claims, *(await look(harness, limit=1)).claims]
    assert [claim.job_id for claim in found] == [other]


async def test_a_refused_end_frees_nothing(harness: StoreHarness) -> None:
    """A worker that lost its claim completes it: the place was free already, and is taken again."""
    await declare(harness, running=1)
    (job_id,) = await jobs(harness, 1)
    (claim,) = await claims(harness)
    await harness.lose(claim)
    (again,) = await claims(harness, "bob")
    assert again.job_id == job_id
    assert not await harness.complete(claim)
    await jobs(harness, 1)
    assert await claims(harness) == []


async def test_a_transaction_that_stays_open_delays_no_other_job(harness: StoreHarness, rival: Store) -> None:
    """An end that is not committed yet keeps its place; claims of other places go on meanwhile."""
    if type(harness.store).__name__ == "SqliteStore":
        pytest.skip("one writer")
    await declare(harness, running=2)
    await jobs(harness, 4)
    first, second = await claims(harness)
    async with harness.store.transaction(timeout=timedelta(seconds=5)) as transaction:
        assert await transaction.complete_job("alice", Completion(first.hold))
        assert (await rival.claim_limited(request("bob", limit=10))).claims == []
        (settled,) = await rival.complete_jobs("alice", [Completion(second.hold)])
        assert settled.hold == second.hold
        assert len((await rival.claim_limited(request("bob", limit=10))).claims) == 1
    assert len(await claims(harness)) == 1


async def test_jobs_that_cannot_run_now_hold_no_place(harness: StoreHarness) -> None:
    """Not due, paused, dead, unknown to every worker: the others run."""
    await declare(harness, running=1)
    await harness.add(new_job(limits=("smtp",), delay=timedelta(hours=1)))
    (paused,) = await jobs(harness, 1)
    await harness.store.pause_job(paused)
    await jobs(harness, 1, task="unknown")
    (last,) = await jobs(harness, 1)
    (claim,) = await claims(harness)
    assert claim.job_id == last
    assert await harness.complete(claim)
    assert await claims(harness) == []
    await harness.store.resume_job(paused)
    assert [claim.job_id for claim in await claims(harness)] == [paused]


async def test_a_job_is_looked_at_when_it_becomes_due(harness: StoreHarness) -> None:
    """The answer says when; a moment earlier there is nothing to claim."""
    await declare(harness)
    await harness.add(new_job(limits=("smtp",), delay=SECOND))
    assert (await look(harness)).limited_at == START + SECOND
    assert (await harness.claim()).limited_at == START + SECOND
    harness.now.advance(seconds=1)
    assert len(await claims(harness)) == 1


@pytest.mark.parametrize("how", ["run_job_now", "retry_job", "resume_job"])
async def test_what_an_operator_makes_due_starts(harness: StoreHarness, how: str) -> None:
    """Run now, retry and resume mark the key."""
    await declare(harness)
    (job_id,) = await jobs(harness, 1, max_attempts=1, **({"delay": timedelta(days=1)} if how == "run_job_now" else {}))
    if how == "retry_job":
        (claim,) = await claims(harness)
        await harness.store.fail_jobs("alice", [Failure(hold=claim.hold, error="no", delay=SECOND)])
    if how == "resume_job":
        await harness.store.pause_job(job_id)
    assert await claims(harness) == []
    assert await getattr(harness.store, how)(job_id)
    assert [claim.job_id for claim in await claims(harness)] == [job_id]


# Order


async def test_first_come_first_served_within_a_priority(harness: StoreHarness) -> None:
    """By priority, then by due time."""
    await declare(harness, running=1)
    late, early = await jobs(harness, 1, priority=5), await jobs(harness, 1, priority=0)
    later = await jobs(harness, 1, priority=5)
    order = []
    for _ in range(3):
        (claim,) = await claims(harness)
        order.append(claim.job_id)
        assert await harness.complete(claim)
    assert order == early + late + later


async def test_the_oldest_place_goes_to_the_job_that_has_waited_longest(harness: StoreHarness) -> None:
    """Whatever its priority, at its own key and at a shared one; the others go by priority."""
    await declare(harness, running=1)
    await declare(harness, "each", running=1)
    keys = {"limits": ("each:7", "smtp")}
    (last,), urgent = await jobs(harness, 1, priority=9, **keys), await jobs(harness, 3, priority=0)
    order = []
    for oldest in (0, 1, 0):
        (claim,) = await claims(harness, oldest=oldest)
        order.append(claim.job_id)
        assert await harness.complete(claim)
    assert order == [urgent[0], last, urgent[1]]


async def test_the_oldest_places_are_part_of_the_limit(harness: StoreHarness) -> None:
    """One of three goes to the job that has waited longest, two to the most urgent ones."""
    await declare(harness, running=3)
    last, urgent = await jobs(harness, 2, priority=9), await jobs(harness, 5, priority=0)
    assert {claim.job_id for claim in await claims(harness, oldest=1)} == {last[0], *urgent[:2]}


async def test_future_jobs_do_not_hide_due_ones(harness: StoreHarness) -> None:
    """A job of the first priority that waits for a backoff stands in no other's way."""
    await declare(harness, running=1)
    await harness.add(*(new_job(limits=("smtp",), priority=0, delay=timedelta(days=1)) for _ in range(5)))
    (due,) = await jobs(harness, 1, priority=9)
    assert [claim.job_id for claim in await claims(harness)] == [due]


# Other workers


async def test_jobs_of_other_workers_are_left_to_them(harness: StoreHarness) -> None:
    """A worker that serves another queue frees a place: the mark that it leaves wakes those that can use it, once."""
    await declare(harness, running=1)
    await jobs(harness, 1)
    (claim,) = await claims(harness)
    (other,) = await jobs(harness, 1, queue="mail")
    assert await claims(harness, "bob", queues=["mail"]) == []
    assert await harness.complete(claim)
    answer = await look(harness)
    assert (answer.claims, answer.marked) == ([], True)
    assert not (await look(harness)).marked
    (claim,) = await claims(harness, "bob", queues=["mail"])
    assert claim.job_id == other


async def test_a_job_of_another_worker_is_found_although_one_is_due_later(harness: StoreHarness) -> None:
    """The mark of a job that is due tomorrow does not stand for one that could start now."""
    await declare(harness, running=1)
    await harness.add(new_job(limits=("smtp",)))
    (claim,) = await claims(harness)
    (waits,) = await jobs(harness, 1)
    await jobs(harness, 1, run_at=START + timedelta(days=1))
    assert await claims(harness) == []
    assert await harness.complete(claim)
    assert (await look(harness, "bob", tasks=frozenset({"other"}))).claims == []
    assert [claim.job_id for claim in (await look(harness)).claims] == [waits]


async def test_marks_do_not_grow_while_no_worker_serves_a_lane(harness: StoreHarness) -> None:
    """A hundred jobs of one task come and go beside one of a task that no worker knows: one mark stays."""
    await declare(harness, running=2)
    await jobs(harness, 1, task="unknown")
    for _ in range(20):
        await jobs(harness, 1)
        (claim,) = await claims(harness)
        assert await harness.complete(claim)
        assert await claims(harness) == []
    assert len((await harness.backend.snapshot())["marks"]) == 1


async def test_a_poisonous_job_runs_alone(harness: StoreHarness) -> None:
    """At most one isolated job per worker, here too; a worker that has one leaves it to the others."""
    await declare(harness, running=5)
    await jobs(harness, 2)
    for _ in range(2):
        claimed = await claims(harness)
        assert len(claimed) == 2
        await harness.lose(claimed[0])
    assert len((await look(harness)).claims) == 1
    answer = await look(harness, isolated=False)
    assert (answer.claims, answer.limited_at) == ([], harness.now() + SECOND)
    harness.now.advance(seconds=1)
    assert len((await look(harness, "bob")).claims) == 1


# Tokens


async def test_no_more_starts_than_tokens(harness: StoreHarness) -> None:
    """A burst of three, then one every tenth of a second, whether they run or have ended."""
    await declare(harness, running=None, rate="10/s", burst=3)
    await jobs(harness, 8)
    start = harness.now()
    assert len(await claims(harness)) == 3
    for _ in range(4):
        answer = await look(harness)
        assert answer.claims == []
        assert answer.limited_at is not None
        assert timedelta(0) < answer.limited_at - harness.now() <= timedelta(milliseconds=101)
        harness.now.value = answer.limited_at
        assert len(await claims(harness)) == 1
    assert timedelta(milliseconds=399) < harness.now() - start <= timedelta(milliseconds=402)


async def test_tokens_never_exceed_the_burst(harness: StoreHarness) -> None:
    """After a day without a job there are three, not a million."""
    await declare(harness, running=None, rate="10/s", burst=3)
    await jobs(harness, 1)
    await claims(harness)
    harness.now.advance(days=1)
    await jobs(harness, 9)
    assert len(await claims(harness)) == 3


async def test_a_clock_that_goes_back_gives_no_tokens_and_takes_none(harness: StoreHarness) -> None:
    """Tokens come by the time that passes from then on."""
    await declare(harness, running=None, rate="10/s", burst=1)
    await jobs(harness, 1)
    assert len(await claims(harness)) == 1
    harness.now.advance(hours=-1)
    await jobs(harness, 2)
    assert await claims(harness) == []
    harness.now.advance(milliseconds=101)
    assert len(await claims(harness)) == 1


async def test_a_function_that_resumes_spends_no_token(harness: StoreHarness) -> None:
    """It needs a place, and goes on although the bucket is empty and others wait for tokens."""
    await declare(harness, running=1, rate="1/h", burst=1)
    await jobs(harness, 1)
    (claim,) = await claims(harness)
    await harness.record(claim, waiting())
    await jobs(harness, 3)
    assert await harness.suspend(claim)
    assert await claims(harness) == []
    await harness.send(claim.job_id)
    await harness.store.fold_marks()
    (again,) = await claims(harness)
    assert again.job_id == claim.job_id
    assert await harness.complete(again)
    assert await claims(harness) == []


# Several limits


async def test_several_limits_all_or_none(harness: StoreHarness) -> None:
    """One per customer and two in all: three customers with two jobs each."""
    await declare(harness, running=2)
    await declare(harness, "each", running=1)
    for customer in ("a", "a", "b", "b", "c", "c"):
        await jobs(harness, 1, limits=(f"each:{customer}", "smtp"), args=f'{{"customer":"{customer}"}}')
    order = []
    running: list[Claim] = []
    for _ in range(6):
        running += await claims(harness)
        customers = [claim.args for claim in running]
        assert len(running) <= 2
        assert len(set(customers)) == len(customers)
        order.append(running[0].job_id)
        assert await harness.complete(running.pop(0))
    assert len(set(order)) == 6
    assert await claims(harness) == []


async def test_a_job_that_waits_for_another_limit_blocks_no_job(harness: StoreHarness) -> None:
    """Fifty jobs of a busy customer come first; the one of another customer starts."""
    await declare(harness, running=2)
    await declare(harness, "each", running=1)
    await jobs(harness, 30, limits=("each:busy", "smtp"))
    assert len(await claims(harness)) == 1
    (free,) = await jobs(harness, 1, limits=("each:free", "smtp"))
    assert [claim.job_id for claim in await claims(harness)] == [free]


async def test_those_that_wait_for_a_token_are_not_overtaken(harness: StoreHarness) -> None:
    """A job with a key of its own does not take the token of those that wait for one."""
    await declare(harness, running=None, rate="10/s", burst=1)
    await declare(harness, "each", running=1)
    (spends,) = await jobs(harness, 1, limits=("each:0", "smtp"))
    assert [claim.job_id for claim in await claims(harness)] == [spends]
    (first,) = await jobs(harness, 1, limits=("each:1", "smtp"))
    assert await claims(harness) == []
    harness.now.advance(milliseconds=200)
    await jobs(harness, 1, limits=("each:2", "smtp"))
    assert [claim.job_id for claim in await claims(harness)] == [first]


# Declaring and changing


async def test_an_undeclared_limit_admits_nothing(harness: StoreHarness) -> None:
    """A job of newer code waits until a worker of that code has declared its limit."""
    await jobs(harness, 2)
    assert await claims(harness) == []
    await declare(harness, running=1)
    assert len(await claims(harness)) == 1


async def test_a_raised_limit_admits_at_once_and_a_lowered_one_waits(harness: StoreHarness) -> None:
    """Those that run are not stopped; nothing starts until fewer run than the new limit."""
    await declare(harness, running=1)
    await jobs(harness, 6)
    running = await claims(harness)
    await declare(harness, running=3)
    running += await claims(harness)
    assert len(running) == 3
    await declare(harness, running=1)
    for claim in running[:2]:
        assert await harness.complete(claim)
        assert await claims(harness) == []
    assert await harness.complete(running[2])
    assert len(await claims(harness)) == 1


async def test_of_two_writers_of_a_limit_one_wins(harness: StoreHarness) -> None:
    """A declaration that is not the one seen changes nothing."""
    rule = LimitRule(name="smtp", running=1, declaration="a")
    assert await harness.store.write_limit(rule, seen=None)
    assert not await harness.store.write_limit(rule, seen=None)
    assert not await harness.store.write_limit(rule, seen="b")
    changed = LimitRule(name="smtp", running=None, rate=Rate.parse("5/m"), burst=2, declaration="b", app_version="2")
    assert await harness.store.write_limit(changed, seen="a")
    assert await harness.store.read_limits() == [changed]


async def test_a_recurring_job_gets_its_limit_with_its_declaration(harness: StoreHarness) -> None:
    """Also while it is claimed: the claim takes a place, and its end gives it back."""
    await declare(harness, running=1)
    claim = await harness.claimed(recurring())
    job = recurring(limits=("smtp",), declaration="v2", run_at=START)
    assert await harness.store.declare_job(job, seen=seen(), worker="alice", fence=claim.fence)
    await jobs(harness, 1)
    assert await claims(harness) == []
    assert await harness.complete(claim, next_run_time=START + timedelta(days=1))
    assert len(await claims(harness)) == 1


async def test_lists_say_what_is_in_use(harness: StoreHarness) -> None:
    """Running, waiting and tokens, by limit and by key."""
    await declare(harness, running=2, rate="60/m", burst=5)
    await declare(harness, "each", running=1)
    await jobs(harness, 3)
    await jobs(harness, 2, limits=("each:a",))
    await claims(harness)
    each, smtp = await harness.store.list_limits()
    assert (each.name, each.running, each.rate, each.keys, each.in_use, each.waiting) == ("each", 1, None, 1, 1, 1)
    assert (smtp.rate, smtp.burst, smtp.in_use, smtp.waiting) == ("60/1m", 5, 2, 1)
    (key,) = await harness.store.list_limit_keys("smtp")
    assert (key.key, key.in_use, key.waiting) == ("smtp", 2, 1)
    assert key.tokens == pytest.approx(3, abs=0.1)
    (key,) = await harness.store.list_limit_keys("each")
    assert (key.key, key.in_use, key.waiting, key.tokens) == ("each:a", 1, 1, None)


# Healing


async def test_maintenance_heals_what_is_counted_wrong(harness: StoreHarness) -> None:
    """Rows that a person has removed: the places are counted again, and waiting jobs start."""
    await declare(harness, running=2)
    await jobs(harness, 3)
    first, _ = await claims(harness)
    await harness.backend.forget_marks()
    assert await harness.complete(first)
    await harness.backend.forget_marks()
    assert list(await harness.store.audit_limits()) == [Miscount("smtp", 2, 1)]
    assert await harness.store.recount_limits() >= 1
    assert len(await claims(harness)) == 1
    assert await harness.store.recount_limits() == 0


async def test_maintenance_marks_jobs_that_could_run(harness: StoreHarness) -> None:
    """A mark is lost: the job is found, and not marked again and again."""
    await declare(harness, running=2)
    await jobs(harness, 1)
    await harness.backend.forget_marks()
    assert (await look(harness)).claims == []
    assert list(await harness.store.audit_limits()) == [Miscount("smtp", 0, 0, stranded=True)]
    assert await harness.store.recount_limits() == 1
    assert await harness.store.recount_limits() == 0
    assert len(await claims(harness)) == 1


async def test_keys_that_are_not_used_are_forgotten(harness: StoreHarness) -> None:
    """After an hour without a job; the limit itself stays, and so does its count."""
    await declare(harness, "each", running=1)
    await jobs(harness, 1, limits=("each:a",))
    (claim,) = await claims(harness)
    harness.now.advance(hours=2)
    await harness.store.recount_limits()
    assert len(await harness.store.list_limit_keys("each")) == 1
    assert await harness.complete(claim)
    assert await claims(harness) == []
    harness.now.advance(hours=2)
    await harness.store.recount_limits()
    assert await harness.store.list_limit_keys("each") == []
    await jobs(harness, 2, limits=("each:a",))
    assert len(await claims(harness)) == 1


# All together


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_random_work_never_exceeds_a_limit_and_strands_nothing(harness: StoreHarness, seed: int) -> None:
    """Jobs with one to three limits, ends of all kinds: counted at every step, and all are done at last."""
    rng = random.Random(seed)
    caps = {"smtp": 3, "each": 1, "bulk": 2}
    for name, cap in caps.items():
        await declare(harness, name, running=cap)
    running: dict[UUID, tuple[Claim, tuple[str, ...]]] = {}
    wanted: dict[UUID, tuple[str, ...]] = {}
    for _ in range(60):
        action = rng.random()
        if action < 0.4:
            await _add_random(harness, rng, wanted)
        elif action < 0.75 or not running:
            for claim in (await look(harness, limit=rng.randint(1, 4))).claims:
                running[claim.job_id] = claim, wanted[claim.job_id]
        else:
            claim, _ = running.pop(rng.choice(list(running)))
            await _end_random(harness, rng, claim, wanted)
        harness.now.advance(milliseconds=rng.randint(0, 50))
        for name, cap in caps.items():
            keys = [key for _, keys in running.values() for key in keys if key.split(":")[0] == name]
            assert all(keys.count(key) <= cap for key in keys)
        await checked(harness)
    harness.now.advance(hours=1)
    while wanted:
        found = await claims(harness)
        for claim in found + [claim for claim, _ in running.values()]:
            assert await harness.complete(claim)
            wanted.pop(claim.job_id)
        assert found or running
        running.clear()


async def _add_random(harness: StoreHarness, rng: random.Random, wanted: dict[UUID, tuple[str, ...]]) -> None:
    some: list[NewJob] = []
    for _ in range(rng.randint(1, 4)):
        keys = [f"each:{rng.randint(1, 3)}", "smtp", "bulk"]
        chosen = tuple(key for key in keys if rng.random() < 0.5) or ("smtp",)
        delay = timedelta(milliseconds=rng.choice([0, 0, 30]))
        some.append(new_job(limits=chosen, priority=rng.randint(4, 5), delay=delay))
    await harness.add(*some)
    wanted.update((job.id, job.limits) for job in some)


async def _end_random(
    harness: StoreHarness, rng: random.Random, claim: Claim, wanted: dict[UUID, tuple[str, ...]]
) -> None:
    how = rng.choice(["complete", "fail", "release"])
    if how == "complete":
        assert await harness.complete(claim)
        wanted.pop(claim.job_id)
    elif how == "fail":
        delay = timedelta(milliseconds=rng.randint(0, 100))
        assert await harness.store.fail_jobs("alice", [Failure(hold=claim.hold, error="no", delay=delay)])
    else:
        assert await harness.release(claim, outcome=Outcome.RELEASED)
