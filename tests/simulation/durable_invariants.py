"""What must hold of durable functions, after every statement and commit.

    steps      a recorded step stays as it is, and its function is not called again by the holder of the claim
    effects    one for each transact that is recorded, none for any other
    signals    consumed once, oldest first, in the commit that records the wait
    children   pending = children that have not ended + ends that are not folded yet
    sleepers   no owner, the attempt given back; nothing that they wait for has come without a mark

All of it is read from the committed rows; what bodies saw is compared with what they saw before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from reltask import Context
from reltask.errors import ChildFailed
from reltask.model.durable import Recording
from tests.simulation.invariants import MICROS, Violation, changed_nothing
from tests.simulation.loop import PROCESS

if TYPE_CHECKING:
    from tests.simulation.world import World  # for types only

DURABLE = ("durable", "recurring_durable", "part", "broken")
CHANGING = frozenset(
    {
        "claim_jobs",
        "reclaim_jobs",
        "complete_jobs",
        "fail_jobs",
        "release_jobs",
        "suspend_jobs",
        "record_steps",
        "send_signals",
        "fold_marks",
        "cancel_children",
        "discard_job",
        "cancel_job",
        "retry_job",
        "run_job_now",
        "commit",
    }
)

MARKS = "select job_id, seq, kind, name, at from reltask_marks where kind <> 'limit'"
"""Those of limits are no durable function's: a worker may be unable to use them, and `limits.py` looks at the jobs."""

Place = tuple[str, int, str]
"""Job, slot and name of a step."""


class Job(NamedTuple):
    """A durable function's row, or a child's."""

    id: str
    task: str
    slot_no: int
    fence: int
    locked_by: str | None
    suspended: int
    attempt: int
    due_at: int
    dead_at: int | None
    steps: int
    parent_id: str | None
    parent_slot: int | None
    parent_step: str | None


class Step(NamedTuple):
    """A recorded step."""

    job_id: str
    slot_no: int
    name: str
    kind: str
    state: str
    value: str | None
    error: str | None
    wake_at: int | None
    signal: str | None
    pending: int


class Sent(NamedTuple):
    """A stored signal."""

    seq: int
    job_id: str
    slot_no: int
    name: str
    value: str
    consumed_by: str | None


class State:
    """All that durable functions have in the database, as it is committed."""

    def __init__(self, world: World) -> None:
        query = world.database.query
        columns = ", ".join(Job._fields)
        jobs = query(f"select {columns} from reltask_jobs where task in {DURABLE}")
        steps = query(f"select {', '.join(Step._fields)} from reltask_steps")
        signals = query(f"select {', '.join(Sent._fields)} from reltask_signals order by seq")
        self.jobs = {row[0]: Job._make(row) for row in jobs}
        self.steps = {(row[0], row[1], row[2]): Step._make(row) for row in steps}
        self.signals = [Sent._make(row) for row in signals]
        ends = query("select parent_id, slot_no, step, nth, job_id from reltask_child_ends")
        self.ends = set(map(tuple, ends))
        marks = query("select kind, job_id, slot_no, name from reltask_marks")
        self.marks = Counter((row[0], row[1], row[2], row[3]) for row in marks)

    def current(self) -> Iterable[tuple[Job, Step]]:
        """The steps that jobs wait for now."""
        for (job_id, slot_no, _), step in self.steps.items():
            job = self.jobs.get(job_id)
            if job is not None and job.slot_no == slot_no and step.state == "waiting":
                yield job, step

    def unconsumed(self, step: Step) -> int:
        return sum(
            signal.job_id == step.job_id
            and signal.slot_no == step.slot_no
            and signal.name == step.signal
            and signal.consumed_by is None
            for signal in self.signals
        )


class DurableInspector:
    """Looks at durable functions after every statement."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before: State | None = None
        self._seen: dict[Place, object] = {}
        self._counted: Counter[str] = Counter()
        """Attempts of each job since its last progress."""
        self._ahead = 0
        """The latest time that the database's clock has shown: it may have been set back since."""

    # What bodies report

    def called(self, ctx: Context, name: str) -> None:
        """A step's function is called: it must not be recorded, if this run still has the claim."""
        state = State(self._world)
        job, step = state.jobs.get(str(ctx.job_id)), state.steps.get((str(ctx.job_id), ctx.slot_no, name))
        holds = job is not None and job.fence == ctx.fence and job.locked_by == PROCESS.get()
        if holds and step is not None and step.state != "waiting":
            self._broken("a recorded step never runs again", f"{name} of {ctx.job_id} in slot {ctx.slot_no}")

    def saw(self, ctx: Context, name: str, value: object) -> None:
        """A durable call returned: in every run of the slot the same."""
        place = (str(ctx.job_id), ctx.slot_no, name)
        if self._seen.setdefault(place, value) != value:
            self._broken("a recorded value stays", f"{name}: {self._seen[place]!r}, then {value!r}")

    def got_children(self, ctx: Context, name: str, results: list[Any], *, in_order: bool) -> None:
        """Every child's result once, in order."""
        places = [nth if isinstance(result, ChildFailed) else result[0] for nth, result in enumerate(results) if result]
        if in_order and places != list(range(len(results))):
            self._broken("children's results come in order", f"{name} of {ctx.job_id}: {results}")

    def _broken(self, invariant: str, detail: str) -> None:
        self._world.remember(Violation(invariant, detail))

    # After every statement

    def __call__(self, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        if verb not in CHANGING or changed_nothing(verb, answer):
            return
        before, after = self._before, State(self._world)
        self._before = after
        self._count_attempts(verb, args, answer)
        self._world.inspector.counts["suspensions"] += len(answer) if verb == "suspend_jobs" else 0
        if before is not None:
            self._records_stay(before, after)
        self._jobs(after)
        self._effects(after)
        self._signals(after)
        self._children(after)
        self._sleepers(after)

    def _count_attempts(self, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        """A run counts if it failed, was lost, or starved its worker; progress sets the count back."""
        match verb:
            case "record_steps":
                accepted = {one.hold for one in answer}
                self._progressed(recording for recording in args[1] if recording.hold in accepted)
            case "commit" if args:
                self._progressed(args[1])
            case "fail_jobs":
                self._counted.update(str(one.hold.job_id) for one in answer)
            case "reclaim_jobs":
                self._counted.update(str(one.job_id) for one in answer)
            case "release_jobs":
                accepted = {one.hold for one in answer}
                self._counted.update(str(r.hold.job_id) for r in args[1] if r.counted and r.hold in accepted)
            case "complete_jobs":
                for one in answer:
                    self._counted[str(one.hold.job_id)] = 0
            case "retry_job" if answer:
                self._counted[str(args[0])] = 0

    def _progressed(self, recordings: Iterable[Recording]) -> None:
        for recording in recordings:
            if recording.progress:
                self._counted[str(recording.hold.job_id)] = 0

    def _jobs(self, state: State) -> None:
        recorded = Counter((job_id, slot_no) for job_id, slot_no, _ in state.steps)
        for job in state.jobs.values():
            if job.suspended and job.locked_by is not None:
                raise Violation("a suspended job has no owner", str(job))
            if job.locked_by is None and job.attempt != self._counted[job.id]:
                raise Violation("attempts count from the last progress", f"{self._counted[job.id]}, not {job}")
            if job.steps != recorded[job.id, job.slot_no]:
                raise Violation("a claim says how many steps are recorded", f"{recorded[job.id, job.slot_no]}: {job}")

    def _records_stay(self, before: State, after: State) -> None:
        """Records are neither lost nor changed, a wait keeps its wake time, and nothing is consumed twice."""
        for place, old in before.steps.items():
            new = after.steps.get(place)
            if new is None or (old.state != "waiting" and new != old):
                raise Violation("a record stays", f"{old}, then {new}")
            if new.state == "waiting" and old.kind in ("sleep", "wait") and new.wake_at != old.wake_at:
                raise Violation("a replay does not restart a timeout", f"{old}, then {new}")
            if new.state == "failed" and new.name.startswith("must"):
                raise Violation("a failure that is let through is not recorded", str(new))
        consumed = {signal.seq: signal for signal in before.signals if signal.consumed_by is not None}
        for signal in after.signals:
            if signal.seq in consumed and consumed[signal.seq] != signal:
                raise Violation("a signal is consumed once", f"{consumed[signal.seq]}, then {signal}")
        if not before.ends <= after.ends:
            raise Violation("a child's end stays", str(before.ends - after.ends))

    def _effects(self, state: State) -> None:
        rows = self._world.database.query(
            "select job_id, slot_no, kind from effects where kind not in ('transfer', 'chunk')"
        )
        written = Counter((row[0], row[1], row[2]) for row in rows)
        recorded = Counter(
            place for place, step in state.steps.items() if step.kind == "transact" and step.state == "done"
        )
        if written != recorded:
            too_many, missing = written - recorded, recorded - written
            raise Violation("an effect for each transact", f"{too_many} too many, {missing} missing")

    def _signals(self, state: State) -> None:
        """Oldest first, and each together with the step that it ended."""
        waiting: set[Place] = set()
        taken: dict[Place, str] = {}
        for signal in state.signals:
            queue = (signal.job_id, signal.slot_no, signal.name)
            if signal.consumed_by is None:
                waiting.add(queue)
                continue
            if queue in waiting:
                raise Violation("signals are consumed in order", str(signal))
            place = (signal.job_id, signal.slot_no, signal.consumed_by)
            if place in taken:
                raise Violation("a wait consumes one signal", f"{place}: {signal}")
            taken[place] = signal.value
        ended = {
            place: step.value for place, step in state.steps.items() if step.kind == "wait" and step.state == "done"
        }
        if ended != taken:
            raise Violation("a signal is consumed with the record of its wait", f"{taken} for {ended}")

    def _children(self, state: State) -> None:
        alive: Counter[Place] = Counter(
            (job.parent_id, job.parent_slot, job.parent_step or "")
            for job in state.jobs.values()
            if job.parent_id is not None and job.parent_slot is not None
        )
        for job, step in state.current():
            if step.kind != "run":
                continue
            place = (job.id, job.slot_no, step.name)
            left = alive[place] + state.marks["child", *place]
            if step.pending != left or step.pending < 0:
                raise Violation("a child's end counts once", f"{step}: {alive[place]} left, {left} to be counted")

    def _sleepers(self, state: State) -> None:
        """A suspended function sleeps only while nothing that it waits for has come.

        A time that has come once has come, also if the database's clock jumps back afterwards.
        """
        elapsed = round(self._world.loop.time() * MICROS)
        self._ahead = max(self._ahead, self._world.micros() - elapsed)
        now = elapsed + self._ahead
        waits: dict[str, list[Step]] = defaultdict(list)
        for job, step in state.current():
            if job.suspended and job.due_at > now and (step.wake_at is None or step.wake_at > now):
                waits[job.id].append(step)
        for job_id, steps in waits.items():
            job = state.jobs[job_id]
            for step in steps:
                if step.wake_at is not None and job.due_at > step.wake_at:
                    raise Violation("a sleeper wakes in time", f"{job} for {step}")
                marked = state.marks["signal", job_id, job.slot_no, step.signal or ""]
                if step.signal and state.unconsumed(step) and not marked:
                    raise Violation("a sleeper is woken by its signal", f"{job} for {step}")
                if step.kind == "run" and not step.pending:
                    raise Violation("a sleeper is woken by its last child", f"{job} for {step}")

    # The end

    def unanswered(self) -> list[tuple[str, str]]:
        """Job and signal of each wait without a timeout for which nothing has come."""
        state = State(self._world)
        return [
            (job.id, step.signal)
            for job, step in state.current()
            if step.signal is not None and step.wake_at is None and job.dead_at is None and not state.unconsumed(step)
        ]

    def marks(self, now: int) -> dict[tuple[str, int], str]:
        """Marks that a worker could fold now."""
        rows = self._world.database.query(MARKS)
        return {(row[0], -row[1]): f"mark of {row[2]} {row[3]} for {row[0]}" for row in rows if row[4] <= now}
