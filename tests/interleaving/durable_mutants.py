"""PostgreSQL's statements for durable functions, deliberately broken: the mistakes that naive versions make."""

from __future__ import annotations

from tests.interleaving.postgres_mutants import NO_LOCK, WAITING, Change, Mutant, mutant

_BY_ID = """        select job.id, job.slot_no
        from reltask.jobs as job
        where job.id = given.job_id
"""
_SAME_AS_SEEN = "\n          and job.fence = seen.fence and job.suspended = seen.suspended"
_KEEPS_PARENT: tuple[Change, ...] = tuple(
    (f"{name} = case when held.dead then null else job.{name} end", f"{name} = job.{name}")
    for name in ("parent_id", "parent_slot", "parent_step", "parent_nth")
)
_SIBLING_LEFT = """    from ended
    cross join parameters
    where not exists (
        select from reltask.jobs as sibling
        where sibling.parent_id = ended.parent_id
          and sibling.id <> all (array(select id from held))
    )
"""

SIGNALS = [
    mutant(
        "a signal locks its job",
        "send_signals",
        "a signal locks no job",
        (_BY_ID, f"        ({_BY_ID.strip()} for update)\n"),
    ),
    mutant(
        "signals lock each other's jobs",
        "send_signals",
        "crossing signals",
        (_BY_ID, f"        ({_BY_ID.strip()} for update)\n"),
    ),
    mutant(
        "a signal leaves a mark each time",
        "send_signals",
        "a signal sent twice",
        ("    from stored\n", "    from found as stored\n"),
    ),
]

SUSPENSIONS = [
    mutant(
        "a suspension ignores what was folded",
        "suspend_jobs",
        "a mark is folded before the suspension",
        ("job.wake_seq <> given.seen", "false"),
    ),
    mutant(
        "a suspension is always due",
        "suspend_jobs",
        "a suspension that has seen all",
        ("job.wake_seq <> given.seen", "true"),
    ),
    mutant("a suspension believes its snapshot", "suspend_jobs", "a suspension with an old snapshot", NO_LOCK),
    mutant("a suspension waits", "suspend_jobs", ("running", "suspend", "record"), WAITING),
    mutant(
        "a suspension forgets its fence",
        "suspend_jobs",
        "late suspension meets a reclaim",
        (" and locked_by is not distinct from :worker::text", ""),
    ),
]

FOLDS = [
    mutant("a fold reads steps older than the row", "fold_marks", "a fold meets a suspension", (_SAME_AS_SEEN, "")),
    mutant(
        "a fold reads the row without a lock",
        "fold_marks",
        ("running, signalled, expired", "fold", "suspend"),
        ("        for update of job skip locked\n", ""),
    ),
    mutant(
        "a fold waits for a job",
        "fold_marks",
        "a fold skips a locked job",
        ("for update of job skip locked", "for update of job"),
    ),
    mutant(
        "a fold believes its snapshot of marks",
        "fold_marks",
        "two folds with one snapshot",
        ("    for update of mark skip locked\n", ""),
    ),
    mutant(
        "a fold cuts a backoff short",
        "fold_marks",
        "a backoff is not cut short",
        ("when job.suspended and woken.is_due", "when woken.is_due"),
    ),
    mutant(
        "a fold wakes for any signal",
        "fold_marks",
        "a signal wakes only who waits for it",
        (" and step.signal = taken.name", ""),
    ),
    mutant(
        "a fold wakes for the first child",
        "fold_marks",
        "the first child does not wake its parent",
        ("where pending <= 0", "where pending <= 1"),
    ),
    mutant(
        "a fold does not count",
        "fold_marks",
        "a mark is folded before the suspension",
        ("wake_seq = job.wake_seq + 1", "wake_seq = job.wake_seq"),
    ),
    mutant(
        "a fold counts one child per turn",
        "fold_marks",
        "the last two children end at once",
        ("step.pending - ended.children", "step.pending - 1"),
    ),
]

RECORDS = [
    mutant(
        "a record forgets its fence", "record_steps", "a record of an old fence", (" and fence = given.claimed", "")
    ),
    mutant(
        "a record forgets its owner",
        "record_steps",
        "late record meets a reclaim",
        ("\n          and locked_by is not distinct from :worker::text", ""),
    ),
    mutant("a record believes its snapshot", "record_steps", ("running", "record", "suspend"), NO_LOCK),
    mutant("a record waits", "record_steps", ("running", "record", "suspend"), WAITING),
    mutant(
        "progress leaves no attempt",
        "record_steps",
        "progress leaves one attempt",
        ("then 1 else job.attempt", "then 0 else job.attempt"),
    ),
    mutant(
        "a failed attempt of a step is progress",
        "record_steps",
        "progress leaves one attempt",
        ("case when changes.progress then 1 else job.attempt end", "2"),
    ),
    mutant(
        "a final step is replaced", "record_steps", "a step recorded twice", ("    where step.state = 'waiting'\n", "")
    ),
    mutant(
        "a replaced step is counted again", "record_steps", "a step recorded twice", ("step.xmax = 0 as", "true as")
    ),
    mutant(
        "a recording sent again counts all children",
        "record_steps",
        "a recording sent again keeps the count",
        ("case when excluded.state = 'waiting' then step.pending else excluded.pending end", "excluded.pending"),
    ),
    mutant(
        "a signal is consumed again",
        "record_steps",
        "a signal consumed once",
        ("      and signal.consumed_by is null\n", ""),
    ),
    mutant(
        "steps of a later run are overlooked",
        "forget_steps",
        "a forgotten step meets a run",
        (" and fence = seen.fence", ""),
    ),
    mutant(
        "steps of a run that ends meanwhile are overlooked",
        "forget_steps",
        "a forgotten step meets a suspension",
        (" and fence = seen.fence and locked_by is null", " and fence = seen.fence"),
    ),
]

CHILDREN = [
    mutant(
        "an end asks whether a sibling is left",
        "complete_jobs",
        "the last two children end at once",
        ("    from ended\n    cross join parameters\n", _SIBLING_LEFT),
    ),
    mutant("a dead child keeps its parent", "fail_jobs", "a child counts once", *_KEEPS_PARENT),
    mutant(
        "a dead child does not end",
        "reclaim_jobs",
        "a reclaim ends a child",
        ("where expired.dead and expired.parent_id is not null", "where false"),
    ),
    mutant(
        "a claimed child is cancelled",
        "cancel_children",
        "a cancelled child meets a claim",
        ("        for update of job skip locked\n", ""),
    ),
    mutant(
        "a child of a live parent is cancelled",
        "cancel_children",
        "a child of a live parent stays",
        ("job.parent_slot < coalesce", "job.parent_slot <= coalesce"),
    ),
]

DURABLE_MUTANTS: list[Mutant] = [*SIGNALS, *SUSPENSIONS, *FOLDS, *RECORDS, *CHILDREN]
