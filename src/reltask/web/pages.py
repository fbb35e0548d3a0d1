"""The screens: each function reads what its page shows, and renders it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from reltask.errors import DeclarationError
from reltask.model.job import State
from reltask.model.overview import MOST, Count, Group, Lane, Overview, total
from reltask.model.problems import find_problems, find_waits
from reltask.model.schedule import decode, describe, next_slot
from reltask.model.screens import DeadLetter, ListedState, RunSample
from reltask.model.views import JobView, LeaseView
from reltask.web.bulk import BULK, WORDS
from reltask.web.forms import read_cursor, read_filter, read_id, write_cursor
from reltask.web.reader import GROUPED

if TYPE_CHECKING:
    from reltask.web.dashboard import Dashboard

FIRES = 5
"""Times that the page of schedules shows of each."""
MISSED = 1_000
"""Missed slots are counted up to this number."""
SEARCHED = ("retry", "run", "pause", "resume", "cancel")
"""What can be chosen for jobs that were searched for: they may be in any state."""
LANES = 200
"""Pairs of queue and task whose counts the stream renews one by one."""
STUCK = timedelta(minutes=5)
"""A leader that has finished no work for this long is stuck, as for `reltask leases list --stuck`."""


class Percentiles(Struct, frozen=True):
    """Lengths and lateness of a sample of runs, in seconds; None: there were none."""

    runs: int
    seconds_50: float | None
    seconds_95: float | None
    late_95: float | None


class ErrorGroup(Struct, frozen=True):
    """Dead letters of one task with the same kind of error."""

    task: str
    signature: str
    letters: list[DeadLetter]

    @property
    def latest(self) -> DeadLetter:
        return self.letters[0]


class ScheduleRow(Struct, frozen=True):
    """A recurring job, its next times, and the slots that it has missed."""

    job: JobView
    words: str
    fires: list[datetime]
    missed: int

    @property
    def to_the_second(self) -> bool:
        """Whether two of the times are within one minute."""
        return len({fire.replace(second=0, microsecond=0) for fire in self.fires}) < len(self.fires)


# The overview


async def overview(dashboard: Dashboard, request: Request) -> Response:
    """Is anything wrong? In sentences, then in numbers."""
    snapshot = await dashboard.live.overview()
    await dashboard.examine()
    first_job = dashboard.commands.first_job(dashboard.app.registry)
    return dashboard.page(request, "overview.html", first_job=first_job, **overview_parts(dashboard, snapshot))


def overview_parts(dashboard: Dashboard, snapshot: Overview) -> dict[str, Any]:
    """What the overview shows; the stream renders the same parts."""
    return {
        "overview": snapshot,
        "commands": dashboard.commands,
        "now": snapshot.now,
        "problems": find_problems(snapshot, findings=dashboard.findings),
        "queues": [queue_row(snapshot, name) for name in snapshot.queues],
        "runs": sum(task.runs for task in snapshot.tasks),
        "failed": sum(task.failed for task in snapshot.tasks),
        "chart": [[m.seconds for m in snapshot.minutes], *(list(row) for row in _series(snapshot))],
    }


def _series(snapshot: Overview) -> tuple[list[int], list[int]]:
    return [minute.succeeded for minute in snapshot.minutes], [minute.failed for minute in snapshot.minutes]


def queue_row(snapshot: Overview, name: str) -> dict[str, Any]:
    """One queue in numbers."""
    lanes = [lane for lane in snapshot.lanes if lane.queue == name]
    return {
        "name": name,
        "due": total(lane.due for lane in lanes),
        "later": total(lane.later for lane in lanes),
        "suspended": sum(lane.suspended for lane in lanes),
        "failing": sum(lane.failing for lane in lanes),
        "running": sum(group.jobs for group in snapshot.claimed if group.queue == name),
        "paused": sum(group.jobs for group in snapshot.paused if group.queue == name),
        "dead": sum(group.jobs for group in snapshot.dead if group.queue == name),
        "oldest": snapshot.oldest_due(name),
        "workers": snapshot.serves(name),
    }


# Jobs


async def jobs(dashboard: Dashboard, request: Request) -> Response:
    """Jobs of one state, with filters in the address."""
    wanted = read_filter(request.query_params)
    if wanted.q and (job_id := read_id(wanted.q)):
        return RedirectResponse(f"{dashboard.root(request)}/jobs/{job_id}", 303)
    snapshot = await dashboard.live.overview()
    after = read_cursor(request.query_params.get("after"))
    if wanted.q:
        key = wanted.q
        found = await dashboard.reader.ask(lambda store: store.find_jobs(key))
        rows, following = [(job.due_at, job) for job in found], None
    else:
        page = await dashboard.reader.ask(
            lambda store: store.page_jobs(wanted.state, task=wanted.task, queue=wanted.queue, after=after)
        )
        rows, following = [(row.at, row.job) for row in page.rows], write_cursor(page.next)
    is_part = wanted.state is ListedState.DUE and (wanted.task or wanted.queue) and not wanted.q
    return dashboard.page(
        request,
        "list.html" if request.headers.get("hx-target") == "list" else "jobs.html",
        filter=wanted,
        rows=[(at, listed_state(job, snapshot.now), job) for at, job in rows],
        offered=[(name, WORDS[name]) for name in (SEARCHED if wanted.q else BULK[wanted.state])],
        same=dashboard.commands.jobs(wanted),
        following=following,
        is_first=after is None,
        counts=state_counts(snapshot, task=wanted.task, queue=wanted.queue),
        waits=find_waits(snapshot, task=wanted.task, queue=wanted.queue) if is_part and rows else [],
        tasks=known_tasks(dashboard, snapshot),
        queues=snapshot.queues,
        now=snapshot.now,
    )


def listed_state(job: JobView, now: datetime) -> ListedState:
    """The list that a job is in."""
    if job.state is State.READY:
        return ListedState.DUE if job.due_at <= now else ListedState.LATER
    return ListedState(job.state.value)


def state_counts(snapshot: Overview, *, task: str | None = None, queue: str | None = None) -> dict[str, Count]:
    """How many jobs are in each list, of this task and queue or of all."""
    lanes = [lane for lane in snapshot.lanes if task in (None, lane.task) and queue in (None, lane.queue)]
    later = total(lane.later for lane in lanes)

    def grouped(groups: list[Group]) -> Count:
        jobs = sum(one.jobs for one in groups if task in (None, one.task) and queue in (None, one.queue))
        return Count(min(jobs, MOST), jobs > MOST)

    return {
        ListedState.DUE: total(lane.due for lane in lanes),
        ListedState.CLAIMED: grouped(snapshot.claimed),
        ListedState.LATER: later,
        ListedState.SUSPENDED: Count(sum(lane.suspended for lane in lanes), later.more),
        ListedState.PAUSED: grouped(snapshot.paused),
        ListedState.DEAD: grouped(snapshot.dead),
    }


def live_counts(snapshot: Overview) -> dict[str, Any]:
    """What the badges of lists show: of all jobs, and of each queue and task, so that a filtered list counts its own.

    Beyond LANES of them the badges of filtered lists are not renewed.
    """
    groups: list[Lane | Group] = [*snapshot.lanes, *snapshot.claimed, *snapshot.paused, *snapshot.dead]
    lanes = sorted({(group.queue, group.task) for group in groups})
    return {
        "all": state_counts(snapshot),
        "workers": snapshot.workers("alive"),
        "lanes": [(queue, task, state_counts(snapshot, queue=queue, task=task)) for queue, task in lanes]
        if len(lanes) <= LANES
        else [],
    }


def known_tasks(dashboard: Dashboard, snapshot: Overview) -> list[str]:
    """Every task that the app, a worker or a job names."""
    return sorted({task.name for task in dashboard.app.registry} | snapshot.task_names)


# Tasks, queues, schedules


async def tasks(dashboard: Dashboard, request: Request) -> Response:
    """Each task: runs, failures, lengths, lateness."""
    snapshot = await dashboard.live.overview()
    measured = percentiles(await dashboard.reader.sample(), lambda run: run.task)
    hour = {task.task: task for task in snapshot.tasks}
    rows = [
        {
            "name": name,
            "hour": hour.get(name),
            "measured": measured.get(name),
            "due": total(lane.due for lane in snapshot.lanes if lane.task == name),
            "running": sum(group.jobs for group in snapshot.claimed if group.task == name),
            "dead": sum(group.jobs for group in snapshot.dead if group.task == name),
            "workers": snapshot.knows(name),
            "pause": next((one for one in snapshot.pauses if (one.kind, one.name) == ("task", name)), None),
        }
        for name in known_tasks(dashboard, snapshot)
    ]
    return dashboard.page(request, "tasks.html", rows=rows, now=snapshot.now)


async def queues(dashboard: Dashboard, request: Request) -> Response:
    """Each queue: what waits, how long, who serves it."""
    snapshot = await dashboard.live.overview()
    measured = percentiles(await dashboard.reader.sample(), lambda run: run.queue)
    rows = [
        {
            **queue_row(snapshot, name),
            "measured": measured.get(name),
            "pause": next((one for one in snapshot.pauses if (one.kind, one.name) == ("queue", name)), None),
        }
        for name in snapshot.queues
    ]
    limits = await dashboard.reader.ask(lambda store: store.list_limits(most=MOST + 1))
    return dashboard.page(
        request,
        "queues.html",
        rows=rows,
        now=snapshot.now,
        limits=limits,
        is_cut=sum(limit.waiting for limit in limits) > MOST,
    )


def percentiles(sample: Iterable[RunSample], group: Any) -> dict[str, Percentiles]:
    """Of each task or queue; runs that only suspended or were released say nothing about the work."""
    groups: dict[str, list[RunSample]] = defaultdict(list)
    for run in sample:
        groups[group(run)].append(run)
    return {name: _percentiles(runs) for name, runs in groups.items()}


def _percentiles(runs: list[RunSample]) -> Percentiles:
    seconds = sorted(run.seconds for run in runs if run.outcome in ("succeeded", "failed", "cancelled"))
    late = sorted(run.late for run in runs)
    return Percentiles(len(runs), _at(seconds, 0.5), _at(seconds, 0.95), _at(late, 0.95))


def _at(values: list[float], share: float) -> float | None:
    return values[min(len(values) - 1, int(len(values) * share))] if values else None


async def schedules(dashboard: Dashboard, request: Request) -> Response:
    """Recurring jobs, their next five times, and what they have missed."""
    snapshot = await dashboard.live.overview()
    task, _, identity = (request.query_params.get("after") or "").partition("~")
    job_id = read_id(identity)
    after = (task, job_id) if job_id else None
    found = await dashboard.reader.ask(lambda store: store.list_schedules(after=after, limit=51))
    rows = [schedule_row(job, snapshot.now) for job in found[:50]]
    following = f"{found[49].task}~{found[49].id}" if len(found) > 50 else None  # noqa: PLR2004 - a page
    return dashboard.page(
        request,
        "schedules.html",
        rows=[(row, snapshot.pause_of(queue=row.job.queue, task=row.job.task)) for row in rows],
        following=following,
        is_first=after is None,
        now=snapshot.now,
    )


def schedule_row(job: JobView, now: datetime) -> ScheduleRow:
    """The times that follow if every slot is run at its nominal time."""
    try:
        schedule = decode(job.schedule or "")
    except DeclarationError:
        return ScheduleRow(job, "a schedule that this version cannot read", [], 0)
    fires, missed = [job.next_run_time], 0
    while len(fires) < FIRES or (fires[-1] < now and missed < MISSED):
        last = fires[-1]
        fires.append(next_slot(schedule, nominal=last, started=last, finished=last).at)
        missed += fires[-1] < now
    return ScheduleRow(job, describe(schedule), fires[:FIRES], missed)


# Dead letters


async def dead(dashboard: Dashboard, request: Request) -> Response:
    """Dead letters, grouped by error."""
    snapshot = await dashboard.live.overview()
    task = read_filter(request.query_params).task
    groups = group_errors(letter for letter in await dashboard.reader.dead_letters() if task in (None, letter.task))
    return dashboard.page(
        request, "dead.html", groups=groups, task=task, count=snapshot.dead_jobs, grouped=GROUPED, now=snapshot.now
    )


def group_errors(letters: Iterable[DeadLetter]) -> list[ErrorGroup]:
    """The largest groups first."""
    groups: dict[tuple[str, str], list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        groups[letter.task, letter.signature].append(letter)
    found = [ErrorGroup(task, text, members) for (task, text), members in groups.items()]
    return sorted(found, key=lambda group: (-len(group.letters), group.task, group.signature))


# Workers, leases, actions


async def workers(dashboard: Dashboard, request: Request) -> Response:
    """Workers: alive, dead and stopped."""
    rows = await dashboard.reader.ask(lambda store: store.list_workers())
    snapshot = await dashboard.live.overview()
    versions = {worker.app_version for worker in rows if worker.state == "alive"}
    return dashboard.page(request, "workers.html", rows=rows[:500], versions=versions, now=snapshot.now)


async def leases(dashboard: Dashboard, request: Request) -> Response:
    """Who leads what."""
    rows = await dashboard.reader.ask(lambda store: store.list_leases())
    snapshot = await dashboard.live.overview()
    return dashboard.page(request, "leases.html", rows=[(row, lease_progress(row)) for row in rows], now=snapshot.now)


class LeaseProgress(Struct, frozen=True):
    """What a holder has published: when it last finished work, and how much. Other values are not shown."""

    last_run: datetime | None
    items: str
    errors: str
    stuck: bool


def lease_progress(lease: LeaseView) -> LeaseProgress:
    """From the lease's metadata, which is the holder's own."""
    published = lease.published
    items, errors = (
        str(value) if isinstance(value := published.get(name), int) else "–" for name in ("items", "errors")
    )
    return LeaseProgress(lease.last_run, items, errors, lease.is_stuck(STUCK))


async def actions(dashboard: Dashboard, request: Request) -> Response:
    """What people did through the dashboard."""
    cursor = read_cursor(request.query_params.get("after"))
    found = await dashboard.reader.ask(lambda store: store.list_actions(after=cursor, limit=51))
    snapshot = await dashboard.live.overview()
    rows = [(row, read_id(row.target[:36])) for row in found[:50]]  # an action on one job begins with its id
    last = found[49] if len(found) > 50 else None  # noqa: PLR2004 - a page
    following = f"{last.at.isoformat()}~{last.id}" if last else None
    return dashboard.page(
        request, "actions.html", rows=rows, following=following, is_first=cursor is None, now=snapshot.now
    )


async def metrics(dashboard: Dashboard, request: Request) -> Response:
    """What the database knows, for Prometheus."""
    try:
        from reltask.telemetry.prometheus import write_overview  # noqa: PLC0415 - an extra
    except ImportError:
        return dashboard.failure(request, 404, "Metrics need prometheus-client.", 'Run: pip install "reltask[metrics]"')
    text = write_overview(await dashboard.live.overview())
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
