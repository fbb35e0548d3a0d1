"""PostgreSQL's statements, deliberately broken. Each mutant must make the check beside it fail.

A mutant is a change of a statement's text. Its check is the name of a case, or a setup with the
names of two operations.
"""

from __future__ import annotations

from typing import NamedTuple

Change = tuple[str, str]
Check = str | tuple[str, str, str]


class Mutant(NamedTuple):
    """One broken statement, and the check that catches it."""

    name: str
    verb: str
    changes: tuple[Change, ...]
    caught_by: Check


def mutant(name: str, verb: str, check: Check, *changes: Change) -> Mutant:
    return Mutant(name, verb, changes, check)


FINISH = "complete_one_offs"
NO_FENCE: Change = ("and fence = given.fence ", "")
NO_FENCE_PARAMETER: Change = ("and fence = :fence::bigint ", "")
NO_OWNER: Change = (" and locked_by is not distinct from :worker::text", "")
NO_ORDER: Change = ("        order by id\n", "")
NO_LOCK: Change = ("        for update skip locked\n", "")
WAITING: Change = ("        for update skip locked\n", "        for update\n")
NOT_SKIPPING: Change = ("for update of job skip locked", "for update of job")

BEATS = [
    mutant(
        "a beat waits for a row",
        "heartbeat_jobs",
        ("expired", "heartbeat", "complete"),
        ("for update skip locked\n    ) as job", "for update\n    ) as job"),
    ),
    mutant(
        "a beat waits for its worker's row",
        "heartbeat_jobs",
        ("workers", "heartbeat", "register alice"),
        ("for update skip locked\n    )\n)", "for update\n    )\n)"),
    ),
    mutant(
        "a beat renews any fence",
        "heartbeat_jobs",
        ("taken again", "heartbeat", "release"),
        ("and fence = pair.fence ", ""),
    ),
    mutant("a beat renews what is not held", "heartbeat_jobs", ("expired", "heartbeat", "reclaim"), NO_OWNER),
    mutant(
        "a beat believes its snapshot",
        "heartbeat_jobs",
        "beat meets a reclaim",
        ("        for update skip locked\n    ) as job", "    ) as job"),
    ),
    mutant(
        "a suspect is judged without its fence",
        "read_holds",
        "read_holds knows the fence",
        ("select job.id, job.fence", "select given.id, given.fence"),
        (" and job.fence = given.fence", ""),
    ),
    mutant(
        "a suspect is judged without its owner",
        "read_holds",
        "beat meets own completion",
        ("job.locked_by is not distinct from :worker::text", ":worker::text is not null"),
    ),
]

CLAIMS = [
    mutant("a claim waits", "claim_jobs", ("ready", "claim", "pause"), NOT_SKIPPING),
    mutant(
        "a claim takes what is claimed",
        "claim_jobs",
        ("expired", "heartbeat", "claim"),
        ("job.locked_by is null and ", ""),
        ("locked_by is null and ", ""),
        ("\n      and job.locked_by is null\n", "\n"),
    ),
    mutant(
        "a claim believes its snapshot",
        "claim_jobs",
        "a claim with an old snapshot",
        ("for update of job skip locked", ""),
        ("\n      and job.locked_by is null\n", "\n"),
    ),
    mutant(
        "a claim overlooks paused queues",
        "claim_jobs",
        "a claim meets a pause of a queue",
        ("on wanted.queue <> all (parameters.paused_queues)", "on true"),
    ),
    mutant(
        "a claim overlooks paused tasks",
        "claim_jobs",
        "a claim meets a pause of a task",
        ("array(select name from reltask.pauses where kind = 'task')", "array[]::text[]"),
    ),
    mutant("a claim keeps the fence", "claim_jobs", ("ready", "claim", "pause"), ("fence = job.fence + 1,", "")),
    mutant("a reclaim waits", "reclaim_jobs", ("expired", "complete", "reclaim"), NOT_SKIPPING),
    mutant(
        "a reclaim takes what has not expired",
        "reclaim_jobs",
        ("held one-off", "finish", "reclaim"),
        ("and job.lock_expires_at < (select now from parameters)", ""),
    ),
    mutant(
        "a reclaim does not look again",
        "reclaim_jobs",
        "reclaim meets a renewal",
        (
            "where job.locked_by is not null and job.lock_expires_at < (select now from parameters)",
            """where exists (
                select from reltask.jobs as late
                where late.id = job.id and late.lock_expires_at < (select now from parameters))""",
        ),
    ),
]

SETTLEMENTS = [
    *(
        mutant(f"{name} waits for a held row", f"{name}_jobs", f"{name} meets a held row", WAITING)
        for name in ("complete", "fail", "release")
    ),
    *(
        mutant(f"{name} forgets the fence", f"{name}_jobs", ("taken again", name, "heartbeat"), NO_FENCE)
        for name in ("complete", "fail", "release")
    ),
    *(
        mutant(f"{name} forgets the owner", f"{name}_jobs", ("expired", name, "reclaim"), NO_OWNER)
        for name in ("complete", "fail", "release")
    ),
    mutant("complete takes no lock", "complete_jobs", "a completion sent twice", NO_LOCK),
    mutant("the end of one-offs takes rows as given", FINISH, "opposite batches: finish, finish", NO_ORDER),
    mutant(
        "the end of a one-off forgets the fence",
        FINISH,
        ("taken again", "finish", "heartbeat"),
        ("job.fence = given.fence and ", ""),
    ),
    mutant(
        "the end of a one-off forgets the owner",
        FINISH,
        ("expired at its last attempt", "finish", "reclaim"),
        (" and job.locked_by is not distinct from :worker::text", ""),
    ),
    mutant(
        "complete waits for a row that a beat holds", "complete_jobs", ("expired", "heartbeat", "complete"), WAITING
    ),
    mutant("a chunk forgets the fence", "guard_job", ("taken again", "chunk", "heartbeat"), NO_FENCE_PARAMETER),
    mutant(
        "progress forgets the fence", "record_progress", ("taken again", "progress", "heartbeat"), NO_FENCE_PARAMETER
    ),
]

PRODUCERS = [
    mutant(
        "a declaration moves a claimed slot",
        "declare_job",
        "a declaration meets a claim",
        ("and (job.locked_by is null or (job.locked_by = :worker::text and job.fence = :fence::bigint))", ""),
    ),
    mutant("an enqueue trips over its twin", "enqueue_job", "an id sent twice", ("on conflict do nothing\n", "")),
    mutant(
        "an enqueue forgets the ledger",
        "enqueue_job",
        ("held one-off", "finish", "enqueue the same id"),
        ("and not exists (select from reltask.runs where job_id = :id::uuid)", ""),
    ),
    mutant(
        "an enqueue leaves its twin to the conflict",
        "enqueue_job",
        "a resend meets the end of its job",
        ("not exists (select from reltask.jobs where id = :id::uuid)\n", "true\n"),
    ),
    mutant(
        "a batch trips over its twin",
        "enqueue_jobs",
        "opposite batches: enqueue, same ids",
        ("    on conflict do nothing\n", ""),
    ),
    mutant(
        "an enqueue inserts by id",
        "enqueue_jobs",
        "opposite batches: enqueue, same keys",
        ("order by given.task, coalesce(given.key, ''), given.id", "order by given.id"),
    ),
]

OPERATORS = [
    mutant(
        "cancel believes its snapshot", "cancel_job", ("ready one-off", "cancel", "claim"), ("for update of job", "")
    ),
    mutant(
        "cancel ends a claimed job",
        "cancel_job",
        ("held one-off", "finish", "cancel"),
        ("job.locked_by is null and job.schedule is null as ends", "job.schedule is null as ends"),
    ),
    mutant(
        "a cancel survives the completion of its slot",
        "complete_jobs",
        "a completion saves the next slot",
        ("case when job.schedule is null and job.cancel_slot", "case when job.cancel_slot"),
    ),
    mutant(
        "a cancelled job dies of its failure",
        "fail_jobs",
        "a cancelled claim that fails",
        (" and not cancel.pending", ""),
    ),
    mutant(
        "discard takes a claimed job",
        "discard_job",
        ("expired", "heartbeat", "discard"),
        ("and job.locked_by is null", ""),
    ),
    mutant("discard believes its snapshot", "discard_job", ("ready", "claim", "discard"), ("for update of job", "")),
    mutant(
        "run-now moves a claimed job", "run_job_now", ("expired", "heartbeat", "run_now"), ("and locked_by is null", "")
    ),
    mutant("retry revives the living", "retry_job", ("dead", "retry", "retry"), ("and dead_at is not null", "")),
]

BY_EXISTS: Change = ("    for key share\n", "")
NO_TERM: Change = ("(:term::bigint is null or exists (select from leader))\n      and ", "")
LED = {
    "prune": "prune_runs",
    "roll up": "roll_up_runs",
    "mark dead": "mark_dead_workers",
    "prune records": "prune_records",
}

LEASES = [
    mutant("a guard checks by EXISTS", "guard_lease", "lead keeps the lease", ("\nfor key share", "")),
    mutant(
        "a guard keeps beats waiting",
        "guard_lease",
        "a beat passes its leader's transaction",
        ("for key share", "for share"),
    ),
    mutant(
        "a guard forgets the term",
        "guard_lease",
        ("lease ended", "acquire", "lead"),
        ("and lease.term = :term::bigint ", "and :term::bigint > 0 "),
    ),
    *(mutant(f"{name} checks by EXISTS", verb, f"{name} keeps the lease", BY_EXISTS) for name, verb in LED.items()),
    *(
        mutant(f"{name} believes its snapshot", verb, f"{name} with an old term", BY_EXISTS)
        for name, verb in LED.items()
    ),
    *(mutant(f"{name} forgets the term", verb, f"{name} with an old term", NO_TERM) for name, verb in LED.items()),
    mutant(
        "a prune waits for another",
        "prune_runs",
        "two prunes at once",
        ("for update of run skip locked", "for update of run"),
    ),
    mutant(
        "a try waits for a leader",
        "acquire_lease",
        "lead keeps the lease",
        ("for update of lease skip locked", "for update of lease"),
    ),
    mutant(
        "a try believes its snapshot",
        "acquire_lease",
        "two tries with the same snapshot",
        ("    for update of lease skip locked\n", ""),
    ),
    mutant(
        "a try overlooks a renewal",
        "acquire_lease",
        "a try meets a renewal",
        ("    for update of lease skip locked\n", ""),
    ),
    mutant(
        "a try waits for its twin",
        "acquire_lease",
        ("no lease", "acquire", "acquire"),
        ("pg_try_advisory_xact_lock(hashtextextended('reltask.leases ' || :lease::text, 0::bigint))", "true"),
    ),
    mutant(
        "a try keeps the term",
        "acquire_lease",
        ("lease ended", "acquire", "acquire"),
        ("case when free.won_before then 0 else 1 end", "0"),
    ),
    mutant(
        "a beat revives what has ended",
        "heartbeat_lease",
        ("lease ended", "acquire", "beat"),
        ("and lease.expires_at > coalesce(:now::timestamptz, statement_timestamp())", ""),
    ),
    mutant(
        "a release forgets the term",
        "release_lease",
        ("lease ended", "acquire", "release lease"),
        ("and lease.term = :term::bigint ", "and :term::bigint > 0 "),
    ),
]

MUTANTS = [*BEATS, *CLAIMS, *SETTLEMENTS, *PRODUCERS, *OPERATORS, *LEASES]
