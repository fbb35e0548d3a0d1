"""What must hold while a simulation runs, and when it has ended.

The inspector compares the rows before and after every statement that reaches the database,
including those whose answer is lost. At the end the auditor checks the ledger, rows, effects,
reports and bodies.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from reltask import events
from reltask.model.job import SLOT_ENDINGS, Cancellation, Claim, ClaimRequest, Hold, Outcome
from reltask.stores.sqlite.values import micros
from tests.simulation.database import START
from tests.simulation.malformed import TASK as MALFORMED
from tests.simulation.workload import BYSTANDERS, INTERVALS, LOCK_TIMEOUT, STUBBORN, TRANSACTIONAL

MICROS = 1_000_000
SOON = 10.0
"""Seconds within which the outcome of a body is recorded if nothing hinders it: the file may be busy a few times."""


class Violation(AssertionError):
    """An invariant that was broken, with its name."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Body(NamedTuple):
    """One execution of a task body."""

    task: str
    job_id: UUID
    fence: int
    process: str
    started: float
    ended: float
    claimed: float
    """When its claim was executed: the answer may have taken long."""


class Disturbance(NamedTuple):
    """A time in which a process could not act.

    `*`: all of them, because the database's clock jumped.
    """

    process: str
    started: float
    ended: float


class JobRow(NamedTuple):
    """The columns of a job's row that the invariants need."""

    id: str
    task: str
    schedule: str | None
    slot_no: int
    next_run_time: int
    due_at: int
    paused_at: int | None
    dead_at: int | None
    locked_by: str | None
    lock_expires_at: int | None
    fence: int
    isolated: int
    limit_key: str | None


JOB_ROWS = """
select id, task, schedule, slot_no, next_run_time, due_at, paused_at, dead_at, locked_by, lock_expires_at, fence,
       isolated, limit_key
  from reltask_jobs
"""


class Inspector:
    """Compares the rows before and after each statement."""

    def __init__(self, query: Callable[[str], list[sqlite3.Row]], now: Callable[[], int]) -> None:
        self.query = query
        self._now = now
        self.counts: Counter[str] = Counter()
        self._seen: dict[str, tuple[int, int]] = {}
        self.cancelled: dict[tuple[str, int], bool] = {}
        """The slots that were cancelled, and whether they ended in that statement."""
        self.claimed_to_be_ended: set[Hold] = set()
        self.paused: set[tuple[str, str]] = set()
        """Kinds and names of what is paused."""
        self._rows: dict[str, JobRow] | None = None

    def rows(self) -> dict[str, JobRow]:
        """The committed rows, read again only after a statement or a commit has changed them."""
        if self._rows is None:
            self._rows = {row[0]: JobRow._make(row) for row in self.query(JOB_ROWS)}
        return self._rows

    def look_again(self) -> None:
        """The rows were changed, by no statement of reltask's."""
        self._rows = None

    def __call__(self, verb: str, args: tuple[Any, ...]) -> Callable[[Any], None]:
        """Read the rows before a statement; the function returned checks them after it."""
        check = {
            "claim_jobs": self._claimed,
            "claim_limited": self._claimed,
            "reclaim_jobs": self._reclaimed,
            "heartbeat_jobs": self._renewed,
            "complete_jobs": self._settled,
            "fail_jobs": self._settled,
            "release_jobs": self._settled,
            "suspend_jobs": self._settled,
            "record_steps": self._recorded,
            "record_in_transaction": self._recorded,
            "guard_job": self._settled,
            "cancel_job": self._cancelled,
            "cancel_children": self._children_cancelled,
            "add_pause": self._paused,
            "end_pause": self._resumed,
        }.get(verb)
        before = self.rows()
        self._rows = None  # unknown until the statement has answered; an error does not say what changed

        def after(answer: Any) -> None:
            self.counts[verb] += 1
            if check is not None:
                check(verb, args, before, answer)
            if changed_nothing(verb, answer):
                self._rows = before
            else:
                self._monotonic()

        return after

    def _claimed(self, verb: str, args: tuple[Any, ...], before: dict[str, JobRow], answer: Any) -> None:
        self.counts["claims"] += len(answer.claims)
        now = self._now()
        if verb == "claim_limited":
            self.counts["limited claims"] += len(answer.claims)
        else:
            self._served_oldest(args[0], before, answer.claims)
        for claim in answer.claims:
            row = before[str(claim.job_id)]
            if row.locked_by is not None:
                raise Violation("at most one valid claim", f"{claim.task} was held by {row.locked_by}")
            if row.due_at > now or row.paused_at is not None or row.dead_at is not None:
                raise Violation("only due jobs are claimed", f"{claim.task} at {now}, due {row.due_at}")
            if self.is_paused(row.task):
                raise Violation("nothing of a paused lane is claimed", claim.task)
            if row.task not in args[0].tasks:
                raise Violation("unknown names are not claimed", claim.task)
            if claim.cancelled != ((row.id, row.slot_no) in self.cancelled):
                raise Violation("exactly the cancelled slots are", f"{claim.task} slot {claim.slot_no}")
            if claim.cancelled:
                self.claimed_to_be_ended.add(claim.hold)

    def _served_oldest(self, asked: ClaimRequest, before: dict[str, JobRow], claims: Sequence[Claim]) -> None:
        """With a place for the job that has waited longest, the claim takes that one, whatever its priority."""
        waited = [
            row.due_at
            for row in before.values()
            if row.locked_by is None and row.paused_at is None and row.dead_at is None and row.due_at <= self._now()
            and row.task in asked.tasks and not row.isolated and not self.is_paused(row.task) and row.limit_key is None
        ]  # fmt: skip
        taken = {before[str(claim.job_id)].due_at for claim in claims}
        if asked.oldest and claims and waited and min(waited) < min(taken):
            raise Violation("low priorities do not starve", f"due {min(waited)} waits, {min(taken)} was taken")

    def is_paused(self, task: str) -> bool:
        """All jobs of a history are in one queue."""
        return ("task", task) in self.paused or ("queue", "default") in self.paused

    def _paused(self, _verb: str, args: tuple[Any, ...], _before: dict[str, JobRow], _answer: Any) -> None:
        self.paused.add((args[0].kind, args[0].name))

    def _resumed(self, _verb: str, args: tuple[Any, ...], _before: dict[str, JobRow], _answer: Any) -> None:
        self.paused.discard((args[0], args[1]))

    def _cancelled(self, _verb: str, args: tuple[Any, ...], before: dict[str, JobRow], answer: Any) -> None:
        row = before.get(str(args[0]))
        alive = row is not None and row.dead_at is None
        if alive != (answer is not None):
            raise Violation("what lives can be cancelled", f"{row}: {answer}")
        if row is not None and answer is not None:
            if (answer is Cancellation.CANCELLED) != (row.locked_by is None and row.schedule is None):
                raise Violation("only an unclaimed one-off ends by a cancel", f"{row}: {answer}")
            self.cancelled[row.id, row.slot_no] = answer is Cancellation.CANCELLED

    def _children_cancelled(self, _verb: str, _args: tuple[Any, ...], before: dict[str, JobRow], answer: Any) -> None:
        for job_id in answer.stopping:
            self.cancelled[str(job_id), before[str(job_id)].slot_no] = False

    def _reclaimed(self, _verb: str, _args: tuple[Any, ...], before: dict[str, JobRow], answer: Any) -> None:
        self.counts["reclaims"] += len(answer)
        now = self._now()
        for lost in answer:
            row = before[str(lost.job_id)]
            if row.lock_expires_at is None or row.lock_expires_at >= now:
                raise Violation("only expired claims are reclaimed", f"{lost.task} {row.lock_expires_at} at {now}")

    def _renewed(self, verb: str, args: tuple[Any, ...], before: dict[str, JobRow], answer: Any) -> None:
        self._held(verb, args[0], answer.renewed, before)

    def _settled(self, verb: str, args: tuple[Any, ...], before: dict[str, JobRow], answer: Any) -> None:
        self.counts["settlements"] += len(answer)
        holds = [one if isinstance(one, Hold) else one.hold for one in answer]
        self._held(verb, args[0], holds, before)
        for row in (before[str(hold.job_id)] for hold in holds):
            if row.schedule is None and (row.id, row.slot_no) in self.cancelled and row.id in self.rows():
                # a cancelled one-off that goes on with Again is still cancelled
                self.cancelled[row.id, self.rows()[row.id].slot_no] = False

    def _recorded(self, verb: str, args: tuple[Any, ...], before: dict[str, JobRow], answer: Any) -> None:
        self.counts["recordings"] += len(answer)
        self._held(verb, args[0], [one.hold for one in answer], before)

    def _held(self, verb: str, worker: str, holds: Iterable[Hold], before: dict[str, JobRow]) -> None:
        for hold in holds:
            row = before.get(str(hold.job_id))
            if row is None or row.locked_by != worker or row.fence != hold.fence:
                holder = None if row is None else (row.locked_by, row.fence)
                raise Violation("only the holder writes", f"{verb} by {worker} with {hold.fence}, held by {holder}")

    def is_not_held(self, worker: str, event: events.RunEvent) -> None:
        """A worker reports that its claim is lost: then the row must not be held by it."""
        row = self.rows().get(str(event.job_id))
        if row is not None and row.locked_by == worker and row.fence == event.fence:
            raise Violation("a lock is lost only when it is lost", f"{event.task} {event.fence}")

    def _monotonic(self) -> None:
        for job_id, row in self.rows().items():
            fence, slot = self._seen.get(job_id, (0, 0))
            if row.fence < fence or row.slot_no < slot:
                raise Violation("fences and slots only grow", f"{(fence, slot)} -> {row}")
            self._seen[job_id] = (row.fence, row.slot_no)


def changed_nothing(verb: str, answer: Any) -> bool:
    """Whether a statement has changed no row that an invariant looks at."""
    match verb:
        case "claim_jobs":
            return not answer.claims
        case "heartbeat_jobs":
            return not answer.renewed
        case "reclaim_jobs" | "fold_marks":
            return not answer
        case "cancel_children":
            return not (answer.ended or answer.stopping)
        case "register_worker" | "stop_worker":
            return True
    return verb.startswith(("read_", "list_"))


class Reports:
    """What the workers reported."""

    def __init__(self) -> None:
        self.outcomes: dict[Hold, Outcome] = {}
        self.refused: list[tuple[Hold, str]] = []

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunSucceeded():
                self._say(event, Outcome.SUCCEEDED)
            case events.RunFailed():
                self._say(event, Outcome.FAILED)
            case events.RunEnded(outcome=outcome):
                self._say(event, Outcome(outcome))
            case events.LateWriteRefused(outcome=outcome):
                self.refused.append((Hold(event.job_id, event.fence), outcome))

    def _say(self, event: events.RunEvent, outcome: Outcome) -> None:
        hold = Hold(event.job_id, event.fence)
        if hold in self.outcomes:
            raise Violation("one report per run", f"{event.task} {hold.fence}: {self.outcomes[hold]} and {outcome}")
        self.outcomes[hold] = outcome


class Auditor:
    """Checks the whole history at its end."""

    def __init__(
        self, inspector: Inspector, reports: Reports, bodies: list[Body], disturbances: list[Disturbance]
    ) -> None:
        self._inspector = inspector
        self._reports = reports
        self._bodies = bodies
        self._disturbances = disturbances
        self._jobs = inspector.rows()
        self._runs: dict[str, list[sqlite3.Row]] = defaultdict(list)
        for row in inspector.query("select * from reltask_runs order by job_id, fence"):
            self._runs[row["job_id"]].append(row)

    def audit(self, *, enqueued: dict[UUID, str], discarded: set[UUID], clock_jumped: bool) -> None:
        self.numbers()
        self.nothing_lost(enqueued)
        self.effects()
        self.reports_agree()
        self.bodies_overlap_only_with_cause()
        self.cancelled_slots_end()
        self.poison_dies_alone(enqueued, discarded)
        self.malformed_rows_die(enqueued, discarded)
        if not clock_jumped:
            self.intervals()

    def numbers(self) -> None:
        """Fences and slots are numbered without gaps; one ledger row per fence, one end per slot."""
        for job_id, runs in self._runs.items():
            fences = [run["fence"] for run in runs]
            row = self._jobs.get(job_id)
            last = row.fence - (row.locked_by is not None) if row else fences[-1]
            if fences != list(range(1, last + 1)):
                raise Violation("one ledger row per fence, without gaps", f"{runs[0]['task']}: {fences}, row at {last}")
            ends = [run["slot_no"] for run in runs if Outcome(run["outcome"]) in SLOT_ENDINGS]
            expected = list(range(1, row.slot_no if row else len(ends) + 1))
            if ends != expected:
                raise Violation("each slot ends exactly once", f"{runs[0]['task']}: {ends}, expected {expected}")

    def nothing_lost(self, enqueued: dict[UUID, str]) -> None:
        """Every enqueued job has ended, is dead, or recurs."""
        for job_id, task in enqueued.items():
            ended = any(Outcome(run["outcome"]) in SLOT_ENDINGS for run in self._runs.get(str(job_id), []))
            row = self._jobs.get(str(job_id))
            if not ended and (row is None or row.dead_at is None):
                raise Violation("no slot is lost", f"{task} {job_id}: {tuple(row) if row else 'gone'}")
        recurring = {job_id for job_id, row in self._jobs.items() if row.schedule is not None}
        doubled = {*self._jobs, *self._runs} - recurring - {str(job_id) for job_id in enqueued}
        if doubled:
            raise Violation("no job is doubled", f"{len(doubled)} that were never enqueued")

    def cancelled_slots_end(self) -> None:
        """A slot that was cancelled has ended, as a dead letter never; a claim that said so has had no body."""
        for (job_id, slot_no), at_once in self._inspector.cancelled.items():
            ends = [run["outcome"] for run in self._runs[job_id] if run["slot_no"] == slot_no]
            if not ends or Outcome(ends[-1]) not in SLOT_ENDINGS or (at_once and ends[-1] != "cancelled"):
                raise Violation("a cancelled slot ends", f"{job_id} {slot_no}: {ends}")
        for body in self._bodies:
            if Hold(body.job_id, body.fence) in self._inspector.claimed_to_be_ended:
                raise Violation("a cancelled claim has no body", f"{body}")

    def effects(self) -> None:
        """Each success of a transactional task has its effect exactly once, with that success's fence."""
        rows = self._inspector.query("select job_id, slot_no, fence from effects where kind = 'transfer'")
        written = Counter((row["job_id"], row["slot_no"], row["fence"]) for row in rows)
        succeeded = Counter(
            (job_id, run["slot_no"], run["fence"])
            for job_id, runs in self._runs.items()
            for run in runs
            if run["outcome"] == "succeeded" and run["task"] in TRANSACTIONAL
        )
        if written != succeeded:
            raise Violation("effects exactly once", f"{written - succeeded} too many, {succeeded - written} missing")

    def reports_agree(self) -> None:
        """What a worker reported equals the ledger."""
        ledger = {
            Hold(UUID(job_id), run["fence"]): Outcome(run["outcome"])
            for job_id, runs in self._runs.items()
            for run in runs
        }
        for hold, outcome in self._reports.outcomes.items():
            if ledger.get(hold) != outcome:
                raise Violation("reports agree with the ledger", f"{hold.fence}: {outcome} vs {ledger.get(hold)}")
        for hold, refused in self._reports.refused:
            if ledger.get(hold) == refused:
                raise Violation("reports agree with the ledger", f"{hold.fence}: refused, but {refused} is recorded")

    def bodies_overlap_only_with_cause(self) -> None:
        """Bodies of one job overlap only if the older one's process was paused, or the body did not stop."""
        by_job: dict[UUID, list[Body]] = defaultdict(list)
        for body in self._bodies:
            by_job[body.job_id].append(body)
        for bodies in by_job.values():
            ordered = sorted(bodies, key=lambda body: body.fence)
            for older, newer in itertools.pairwise(ordered):
                if older.ended > newer.started and not self._excused(older, newer):
                    raise Violation("bodies do not overlap", f"{older} and {newer}")

    def bodies_begin_within_their_locks(self, late: list[Body]) -> None:
        """No body begins on a claim that is over, unless its process was paused, or the clock jumped."""
        for body in late:
            if not any(
                disturbed.process in (body.process, "*")
                and disturbed.started <= body.started
                and disturbed.ended >= body.claimed
                for disturbed in self._disturbances
            ):
                raise Violation("a body begins while its lock lasts", f"{body}")

    def _excused(self, older: Body, newer: Body) -> bool:
        if older.task in STUBBORN or self._completed_by_transaction(older):
            return True
        return any(
            disturbed.process in (older.process, "*")
            and disturbed.started <= newer.started
            and disturbed.ended >= older.claimed
            for disturbed in self._disturbances
        )

    def _completed_by_transaction(self, body: Body) -> bool:
        """Its transaction had completed the slot; the body had not returned yet."""
        runs = self._runs[str(body.job_id)]
        return body.task in TRANSACTIONAL and any(
            run["fence"] == body.fence and run["outcome"] == "succeeded" for run in runs
        )

    def finished_bodies_keep_their_claims(
        self, finished: dict[tuple[UUID, int], tuple[str, str, float]], troubles: list[Disturbance]
    ) -> None:
        """A body that has returned does not run again, unless its process or its way to the database was disturbed."""
        for (job_id, fence), (task, process, at) in finished.items():
            for run in self._runs[str(job_id)]:
                if run["fence"] != fence or run["outcome"] != "lost" or task in STUBBORN:
                    continue
                lost_at = (run["finished_at"] - micros(START)) / MICROS
                causes = (
                    cause.process in (process, "*") and cause.ended >= at - LOCK_TIMEOUT and cause.started <= lost_at
                    for cause in (*self._disturbances, *troubles)
                )
                if lost_at >= at and not any(causes):
                    raise Violation(
                        "a finished body keeps its claim", f"{task} {fence} of {process}, lost at {lost_at}"
                    )

    def outcomes_are_recorded_soon(
        self,
        finished: dict[tuple[UUID, int], tuple[str, str, float]],
        excuses: Callable[[UUID, str], list[Disturbance]],
        aftermath: float,
    ) -> None:
        """A body that has returned is recorded soon, whatever rows of other jobs are locked."""
        for (job_id, fence), (task, process, at) in finished.items():
            for run in self._runs[str(job_id)]:
                recorded = (run["finished_at"] - micros(START)) / MICROS
                if run["fence"] != fence or run["outcome"] == "lost" or recorded - at <= SOON:
                    continue
                if not any(
                    cause.process in (process, "*") and cause.started <= recorded and cause.ended >= at - aftermath
                    for cause in excuses(job_id, process)
                ):
                    raise Violation(
                        "an outcome waits for its own row alone",
                        f"{task} {fence} of {process} returned at {at}, recorded at {recorded}",
                    )

    def malformed_rows_die(self, enqueued: dict[UUID, str], discarded: set[UUID]) -> None:
        """A row that cannot be run is a dead letter, and no body has begun with it."""
        for job_id in (job_id for job_id, task in enqueued.items() if task == MALFORMED):
            row = self._jobs.get(str(job_id))
            if job_id not in discarded and (row is None or row.dead_at is None):
                raise Violation("a malformed row ends as a dead letter", str(row and tuple(row)))
        for body in self._bodies:
            if body.task == MALFORMED:
                raise Violation("a malformed row has no body", str(body))

    def poison_dies_alone(self, enqueued: dict[UUID, str], discarded: set[UUID]) -> None:
        """A job that kills its worker is dead after its attempts; jobs beside it are not."""
        for job_id, task in enqueued.items():
            row = self._jobs.get(str(job_id))
            if task == "poison" and job_id not in discarded and (row is None or row.dead_at is None):
                raise Violation("poison ends as a dead letter", str(row and tuple(row)))
            if task in BYSTANDERS and row is not None and row.dead_at is not None:
                outcomes = [run["outcome"] for run in self._runs[str(job_id)]]
                raise Violation("bystanders survive", f"{task}: {outcomes}")

    def intervals(self) -> None:
        """The next nominal time is exactly one interval after the first start of the previous slot."""
        for job_id, row in self._jobs.items():
            interval = INTERVALS.get(row.task)
            if interval is None:
                continue
            starts: dict[int, int] = {}
            nominal = {row.slot_no: row.next_run_time}
            for run in self._runs[job_id]:
                starts.setdefault(run["slot_no"], run["claimed_at"])
                nominal[run["slot_no"]] = run["nominal_time"]
            for slot, started in starts.items():
                following = nominal.get(slot + 1)
                if following is not None and following - started != interval * MICROS:
                    raise Violation("next nominal - first start = interval", f"{row.task} slot {slot}")
