"""What is wrong, in sentences: the first thing that an engineer on call wants to know.

    Overview ──► find_problems ──► Problem("mail: oldest due 14 min, no worker serves it.", "Start one: …")

Each rule looks at the overview alone, so that the answer is the same in the dashboard, in `reltask status --watch` and
in a test. A problem needs an action; a note does not, but explains what is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from shlex import quote
from urllib.parse import quote_plus

from msgspec import Struct
from msgspec.structs import replace

from reltask.model.audit import plural
from reltask.model.doctor import Finding, Level
from reltask.model.lease import MAINTENANCE
from reltask.model.overview import Overview, TaskHour, total

WAITING = timedelta(minutes=2)
"""A job that is due for longer than this is reported: the default lock timeout."""
FAILING = 0.2
"""From this share of failed runs on, a task is reported."""
ENOUGH = 10
"""Runs that a share needs to mean something."""


class Problem(Struct, frozen=True, kw_only=True):
    """Something that is wrong, and what to do about it."""

    level: Level
    about: str
    """The queue, task, worker or lease."""
    text: str
    """A whole sentence."""
    remedy: str = ""
    link: str = ""
    """The screen that shows more, below the dashboard's root."""
    command: str = ""
    """What does the same in a terminal."""


Rule = Callable[[Overview], Iterator[Problem]]


def find_problems(overview: Overview, *, findings: list[Finding] | None = None) -> list[Problem]:
    """All problems, the worst first; `findings` are those of the doctor."""
    rules: list[Rule] = [
        _shards,
        _workers,
        _unserved,
        _late,
        _expired,
        _dead,
        _failing,
        _died,
        _leases,
        _pauses,
        _versions,
    ]
    found = [problem for rule in rules for problem in rule(overview)]
    found += [
        Problem(
            level=one.level,
            about="database",
            text=f"{one.check}: {one.text.removesuffix('.')}.",
            remedy=one.remedy,
            command="reltask doctor MODULE:app",
        )
        for one in findings or []
        if one.level is not Level.OK
    ]
    return sorted(found, key=lambda problem: problem.level is not Level.PROBLEM)


def find_waits(overview: Overview, *, queue: str | None = None, task: str | None = None) -> list[Problem]:
    """What keeps the due jobs of this queue and this task from starting, the worst first."""
    lanes = [lane for lane in overview.lanes if queue in (None, lane.queue) and task in (None, lane.task)]
    pauses = [
        pause for pause in overview.pauses if any(pause.covers(queue=lane.queue, task=lane.task) for lane in lanes)
    ]
    waiting = replace(overview, lanes=lanes, pauses=pauses)
    return [problem for rule in (_workers, _unserved, _late, _pauses) for problem in rule(waiting)]


def duration(length: timedelta) -> str:
    """A length as people say it: 4 s, 14 min, 3 h, 2 days."""
    seconds = length.total_seconds()
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}" if seconds >= 1 else "less than 1 s"
    return f"{seconds / 86_400:.0f} days"


def _shards(overview: Overview) -> Iterator[Problem]:
    for number in overview.away:
        yield Problem(
            level=Level.PROBLEM,
            about=f"shard {number}",
            text=f"Shard {number} does not answer: its jobs are not counted here, and wait.",
            remedy="Look at its database and the network to it. The other shards continue.",
            command="reltask shards list MODULE:app",
        )


def _workers(overview: Overview) -> Iterator[Problem]:
    if overview.workers("alive") or not (overview.due.jobs or overview.running):
        return
    yield Problem(
        level=Level.PROBLEM,
        about="workers",
        text=f"No worker is alive, and {overview.due} {'job is' if overview.due.jobs == 1 else 'jobs are'} due.",
        remedy="Start a worker, or find out why none runs.",
        link="workers",
        command="reltask worker MODULE:app",
    )


def _unserved(overview: Overview) -> Iterator[Problem]:
    """Due jobs that no live worker takes, although some are alive."""
    if not overview.workers("alive"):
        return
    for lane in overview.lanes:
        if (
            not lane.due.jobs
            or overview.serves(lane.queue, lane.task)
            or overview.pause_of(queue=lane.queue, task=lane.task)
        ):
            continue
        unknown = not overview.knows(lane.task)
        why = "; no live worker knows the task." if unknown else f" in queue {lane.queue}, where no live worker takes "
        why += "" if unknown else "it." if lane.due.jobs == 1 else "them."
        due = f"{lane.due} {'job' if lane.due.jobs == 1 else 'jobs'} due"
        yield Problem(
            level=Level.PROBLEM,
            about=lane.task,
            text=f"{lane.task}: {due} for {duration(overview.age(lane.oldest))}{why}",
            remedy="Deploy a worker with this task; after a rename, keep the old name in aliases=."
            if unknown
            else f"Start a worker that serves it: --queues {lane.queue}",
            link=f"jobs?state=due&task={quote_plus(lane.task)}",
            command=f"reltask worker MODULE:app --queues {quote(lane.queue)}",
        )


def _late(overview: Overview) -> Iterator[Problem]:
    """Queues whose oldest due job waits for long, although workers serve it."""
    for queue in overview.queues:
        lanes = [
            lane
            for lane in overview.lanes
            if lane.queue == queue
            and overview.serves(queue, lane.task)
            and not overview.pause_of(queue=queue, task=lane.task)
        ]
        age = max((overview.age(lane.oldest) for lane in lanes if lane.oldest), default=timedelta(0))
        if age < WAITING:
            continue
        workers = overview.serves(queue)
        busy = f"{plural(workers, 'worker')} {'serves' if workers == 1 else 'serve'} it"
        full = overview.running >= overview.places
        due = total(lane.due for lane in lanes)
        yield Problem(
            level=Level.PROBLEM,
            about=queue,
            text=f"{queue}: oldest due {duration(age)}, {due} waiting; {busy}"
            + (f" and all {overview.places} places are taken." if full else ", with free places."),
            remedy="Start more workers, or raise worker.concurrency."
            if full
            else "Look at the oldest job: it says what it waits for.",
            link=f"jobs?state=due&queue={quote_plus(queue)}",
            command="reltask workers MODULE:app"
            if full
            else f"reltask jobs list MODULE:app --state due --queue {quote(queue)}",
        )


def _expired(overview: Overview) -> Iterator[Problem]:
    if not overview.expired:
        return
    oldest = min(group.at for group in overview.claimed if group.at is not None)
    if overview.age(oldest) < timedelta(seconds=30):
        return
    yield Problem(
        level=Level.PROBLEM,
        about="locks",
        text=f"{plural(overview.expired, 'job')} not taken over, although the first lock expired "
        f"{duration(overview.age(oldest))} ago.",
        remedy="A live worker reclaims them within its poll: check that one is alive and reaches the database.",
        link="jobs?state=claimed",
        command="reltask jobs list MODULE:app --state claimed",
    )


def _dead(overview: Overview) -> Iterator[Problem]:
    failing = {task.task: task for task in overview.tasks if _is_failing(task)}
    for task in _died_lately(overview):
        groups = [group for group in overview.dead if group.task == task]
        latest = min(overview.age(group.at) for group in groups)
        failed = f"; {_failed(failing[task])}" if task in failing else ""
        yield Problem(
            level=Level.PROBLEM,
            about=task,
            text=f"{task}: {plural(sum(group.lately for group in groups), 'job')} died in the last hour, "
            f"the latest {duration(latest)} ago{failed}.",
            remedy="Read the error, fix its cause, then retry all jobs that have it.",
            link=f"dead?task={quote_plus(task)}",
            command=f"reltask dead list MODULE:app --task {quote(task)}",
        )


def _died_lately(overview: Overview) -> list[str]:
    """The tasks of which a job died in the last hour."""
    return list(dict.fromkeys(group.task for group in overview.dead if group.lately))


def _is_failing(task: TaskHour) -> bool:
    return task.runs >= ENOUGH and task.failed / task.runs >= FAILING


def _failed(task: TaskHour) -> str:
    return f"{task.failed / task.runs:.0%} of {task.runs:,} runs failed"


def _failing(overview: Overview) -> Iterator[Problem]:
    """Tasks whose runs fail, although none of their jobs died: one that did is reported by `_dead`."""
    died = _died_lately(overview)
    for task in overview.tasks:
        if not _is_failing(task) or task.task in died:
            continue
        waiting = any(lane.failing for lane in overview.lanes if lane.task == task.task)
        yield Problem(
            level=Level.PROBLEM,
            about=task.task,
            text=f"{task.task}: {_failed(task)} in the last hour.",
            remedy="The page of each job that waits for another attempt shows its last error."
            if waiting
            else "Their jobs were run again or have ended. The ledger has the errors.",
            link=f"jobs?state=later&task={quote_plus(task.task)}" if waiting else "tasks",
            command=f"reltask runs MODULE:app --task {quote(task.task)}",
        )


def _died(overview: Overview) -> Iterator[Problem]:
    lately = sum(state.lately for state in overview.states if state.state == "dead")
    if lately:
        yield Problem(
            level=Level.NOTE,
            about="workers",
            text=f"{plural(lately, 'worker')} stopped answering in the last hour without a shutdown.",
            remedy="Live workers take over what they ran. If none was killed, look at their logs: memory, network.",
            link="workers",
            command="reltask workers MODULE:app",
        )


def _leases(overview: Overview) -> Iterator[Problem]:
    for lease in overview.leases:
        if lease.held or overview.age(lease.expires_at) < timedelta(seconds=30):
            continue
        if lease.name == MAINTENANCE and not overview.workers("alive"):
            continue
        if lease.waiting or lease.name == MAINTENANCE:
            yield Problem(
                level=Level.PROBLEM,
                about=lease.name,
                text=f"{lease.name}: no holder for {duration(overview.age(lease.expires_at))}.",
                remedy="A candidate takes it within seconds: check that their database user may write leases.",
                link="leases",
                command="reltask leases list MODULE:app",
            )


def _pauses(overview: Overview) -> Iterator[Problem]:
    for pause in overview.pauses:
        because = f': "{pause.reason}"' if pause.reason else ""
        yield Problem(
            level=Level.NOTE,
            about=pause.name,
            text=f"{pause.kind.capitalize()} {pause.name} is paused for {duration(overview.age(pause.at))}, "
            f"by {pause.by}{because}.",
            remedy="Nothing of it is claimed until it is resumed.",
            link=f"{pause.kind}s",
            command=f"reltask {pause.kind}s resume {quote(pause.name)} --app MODULE:app",
        )


def _versions(overview: Overview) -> Iterator[Problem]:
    versions: dict[str, int] = {}
    for fleet in overview.fleet:
        name = fleet.app_version or "no version"
        versions[name] = versions.get(name, 0) + fleet.workers
    if len(versions) > 1:
        counted = ", ".join(f"{name} on {plural(count, 'worker')}" for name, count in sorted(versions.items()))
        yield Problem(
            level=Level.NOTE,
            about="versions",
            text=f"Workers run {len(versions)} versions of the app: {counted}.",
            remedy="Expected during a deploy; otherwise restart the old ones.",
            link="workers",
            command="reltask workers MODULE:app",
        )
