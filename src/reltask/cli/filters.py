"""Jobs and dead letters by what the dashboard's lists can be filtered by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from reltask.app import App
from reltask.model.job import State
from reltask.model.overview import MOST
from reltask.model.screens import Cursor, DeadLetter, ListedState
from reltask.model.views import JobView
from reltask.stores.store import Store

T = TypeVar("T")
PAGE = 1_000
_LISTS = {**{state.value: (state,) for state in ListedState}, "ready": (ListedState.DUE, ListedState.LATER)}
"""The lists that have the jobs of a state."""


def find_jobs(
    app: App, *, state: str | None, task: str | None, queue: str | None, key: str | None, limit: int
) -> list[JobView]:
    """Jobs by due time. A list of the dashboard is read where a queue, "due" or "later" is asked for."""
    if key is not None:
        found = _ask(app, lambda store: store.find_jobs(key))
        now = _ask(app, lambda store: store.read_now())
        return [job for job in found if _matches(job, state, task, queue, is_due=job.due_at <= now)][:limit]
    if queue is None and state not in ("due", "later"):
        return app.jobs_sync(state=None if state is None else State(state), task=task, limit=limit)
    jobs: list[JobView] = []
    for listed in tuple(ListedState) if state is None else _LISTS[state]:
        jobs += _ask(app, lambda store, listed=listed: _read(store, listed, task, queue, limit))  # type: ignore[misc]
    return sorted(jobs, key=lambda job: job.due_at)[:limit]


async def _read(store: Store, state: ListedState, task: str | None, queue: str | None, limit: int) -> list[JobView]:
    jobs: list[JobView] = []
    after: Cursor | None = None
    while len(jobs) < limit:
        page = await store.page_jobs(state, task=task, queue=queue, after=after, limit=min(PAGE, limit - len(jobs)))
        jobs += [row.job for row in page.rows]
        after = page.next
        if after is None:
            break
    return jobs


def _matches(job: JobView, state: str | None, task: str | None, queue: str | None, *, is_due: bool) -> bool:
    states = {job.state.value, ("due" if is_due else "later") if job.state is State.READY else job.state.value}
    return (state is None or state in states) and task in (None, job.task) and queue in (None, job.queue)


def find_dead(app: App, *, task: str | None, queue: str | None, error: str | None) -> list[DeadLetter]:
    """Dead letters, the newest first; `error` is the heading of a group on the dashboard's page."""
    return [
        letter
        for letter in _ask(app, lambda store: store.list_dead_errors(most=MOST))
        if task in (None, letter.task) and queue in (None, letter.queue) and error in (None, letter.signature)
    ]


def _ask(app: App, operation: Callable[[Store], Awaitable[T]]) -> T:
    return app._client.run_sync(operation, name="list")  # noqa: SLF001 - screens are no part of the public face
