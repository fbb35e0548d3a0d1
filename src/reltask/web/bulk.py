"""Many jobs at once: a filter becomes a list of jobs, which is confirmed with its exact number.

    /confirm?action=retry&state=dead&task=…  ──►  "Retry 7 jobs?"  ──►  POST act: those 7, each with its fence
                                                   (the form names them)

The form names every job that was counted, with the fence that was read. So what is confirmed is what is done: a job
that matches only later is not touched, and one that was claimed since is left as it is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from reltask.model.overview import MOST
from reltask.model.screens import Cursor, ListedState
from reltask.stores.store import Store
from reltask.web.forms import JobFilter, read_filter

if TYPE_CHECKING:
    from reltask.web.dashboard import Dashboard

WORDS = {
    "retry": "Retry",
    "again": "Run again",
    "run": "Run now",
    "pause": "Pause",
    "resume": "Resume",
    "cancel": "Cancel",
    "signal": "Signal",
}
"""What can be done to jobs, as the buttons say it."""
BULK = {
    ListedState.DUE: ("pause", "cancel"),
    ListedState.LATER: ("run", "pause", "cancel"),
    ListedState.SUSPENDED: ("run", "pause", "cancel"),
    ListedState.CLAIMED: ("pause", "cancel"),
    ListedState.PAUSED: ("resume", "cancel"),
    ListedState.DEAD: ("retry",),
}
"""What can be done to all jobs of a list."""
SHOWN = 20
"""Jobs that a confirmation names."""


class Seen(NamedTuple):
    """A job, and the fence that the page showed."""

    id: UUID
    fence: int


class Match(NamedTuple):
    """A job that matches, and its task."""

    job: Seen
    task: str


async def confirm(dashboard: Dashboard, request: Request) -> Response:
    """The exact number of jobs that match, some of their names, and one button."""
    query = request.query_params
    action, wanted, error = query.get("action", ""), read_filter(query), query.get("error", "")
    if not request.state.viewer.may_act:
        return read_only(dashboard, request)
    if action not in BULK[wanted.state]:
        return dashboard.failure(request, 400, "This cannot be done to all jobs of this list.")
    matching = await dashboard.reader.ask(lambda store: find_all(store, wanted, error))
    return dashboard.page(
        request,
        "confirm.html",
        action=action,
        word=WORDS[action],
        filter=wanted,
        error=error,
        count=len(matching),
        of_tasks=Counter(one.task for one in matching).most_common(),
        names=[one.job for one in matching[:SHOWN]],
        seen=write_seen([one.job for one in matching]),
        capped=len(matching) >= MOST,
        same=dashboard.commands.bulk(action, wanted, error, len(matching)),
    )


async def find_all(store: Store, wanted: JobFilter, error: str = "") -> list[Match]:
    """Every job that matches, up to MOST: those of a list, or the dead letters with one kind of error."""
    if wanted.state is ListedState.DEAD:
        letters = await store.list_dead_errors(most=MOST)
        return [
            Match(Seen(letter.id, letter.fence), letter.task)
            for letter in letters
            if wanted.task in (None, letter.task)
            and wanted.queue in (None, letter.queue)
            and error in ("", letter.signature)
        ]
    found: list[Match] = []
    after: Cursor | None = None
    while len(found) < MOST:
        page = await store.page_jobs(wanted.state, task=wanted.task, queue=wanted.queue, after=after, limit=1_000)
        found += [Match(Seen(row.job.id, row.job.fence), row.job.task) for row in page.rows]
        after = page.next
        if after is None:
            break
    return found[:MOST]


def write_seen(jobs: list[Seen]) -> str:
    """The jobs of a form in one field, short: 10 000 of them are 350 kB."""
    return ".".join(f"{job.id.hex}-{job.fence}" for job in jobs)


def read_seen(text: str) -> list[Seen]:
    """The jobs that a form names; what is none is left out."""
    found = []
    for one in text.split(".")[:MOST]:
        identity, _, fence = one.partition("-")
        if len(identity) == 32 and fence.isascii() and fence.isdigit():  # noqa: PLR2004 - digits of a UUID
            try:
                found.append(Seen(UUID(identity), int(fence)))
            except ValueError:
                continue
    return found


def read_only(dashboard: Dashboard, request: Request) -> Response:
    """The page for a viewer who may not act."""
    return dashboard.failure(
        request,
        403,
        "You may look, but not act.",
        'On this machine: reltask dashboard --allow-actions. Elsewhere, authorize(request) must answer "act".',
    )
