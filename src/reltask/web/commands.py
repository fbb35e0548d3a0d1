"""The commands that pages print: each does in a terminal what the page does, and no more.

A dashboard names its app as the person who started it did: MODULE:app, or `--database URL`.
"""

from __future__ import annotations

import re
from datetime import datetime
from shlex import quote
from typing import get_origin
from uuid import UUID

import msgspec

from reltask.model.overview import MOST
from reltask.model.screens import ListedState
from reltask.model.task import Registry, TaskDefinition
from reltask.model.views import JobView
from reltask.web.forms import JobFilter

ANY_APP = "MODULE:app"
"""Stands for the app in the commands of `model/problems.py`."""

_NAMED = re.compile(f"(--app |reltask worker )?{ANY_APP}")
EXAMPLES: dict[object, object] = {str: "text", int: 1, float: 1.5, bool: True, list: [], dict: {}}
"""Values for the arguments of a first job, by type; null for others, which a person replaces."""


class Commands:
    """Writes commands for one app."""

    def __init__(self, reference: str) -> None:
        self.app = reference
        """As an argument: `reltask status MODULE:app`."""
        self.option = reference if reference.startswith("--") else f"--app {reference}"
        """As an option: `reltask jobs show ID --app MODULE:app`."""
        self.code = ANY_APP if reference.startswith("--") else reference
        """Where the tasks are needed, and a database is not enough."""

    def of(self, text: str) -> str:
        """A command that names any app, for this one."""
        meant = {"--app ": self.option, "reltask worker ": self.worker()}
        return _NAMED.sub(lambda found: meant.get(found[1], self.app), text)

    def worker(self) -> str:
        """Starts a worker."""
        return f"reltask worker {self.code}"

    def first_job(self, registry: Registry) -> str:
        """Enqueues a job of the simplest task: without arguments if there is one, else with a value of each type."""
        task = min(registry, key=_effort, default=None)
        if task is None:
            return f"reltask enqueue {self.code} TASK"
        hints = task.arguments.hints
        given = {name: _example(hints[name]) for name in task.arguments.required}
        return f"reltask enqueue {self.code} {quote(task.name)}" + (
            f" {quote(msgspec.json.encode(given).decode())}" if given else ""
        )

    def jobs(self, wanted: JobFilter) -> str:
        """Lists the jobs of a page; a search is for one key or id."""
        if wanted.q:
            return f"reltask jobs list {self.app} --key {quote(wanted.q)}"
        return f"reltask jobs list {self.app}{_filters(wanted)}"

    def job(self, job: JobView | None, job_id: UUID, signals: list[str], now: datetime) -> list[str]:
        """Shows a job; then what can be done to it now."""
        change = f"{job_id} {self.option}"
        found = [f"reltask jobs show {change}"]
        if job is None:
            return [*found, f"reltask jobs run-again {change}"]
        if job.state == "dead":
            return [*found, f"reltask dead retry {change}"]
        found += [f"reltask jobs signal {job_id} {quote(name)} true {self.option}" for name in signals]
        verbs = {"paused": ("resume", "run", "cancel"), "claimed": ("pause", "cancel")}
        waiting = ("pause", "cancel") if job.state == "ready" and job.due_at <= now else ("run", "pause", "cancel")
        return found + [f"reltask jobs {verb} {change}" for verb in verbs.get(job.state, waiting)]

    def lane(self, action: str, kind: str, name: str) -> str:
        """Pauses or resumes a queue or a task."""
        return f"reltask {kind}s {action} {quote(name)} {self.option}"

    def bulk(self, action: str, wanted: JobFilter, error: str, count: int) -> str:
        """Does to all that match what the button does, if they are still this many."""
        if wanted.state is ListedState.DEAD:
            only = f" --error {quote(error)}" if error else ""
            return f"reltask dead retry --all{_lane(wanted)}{only} --count {count} {self.option}"
        listed = f"reltask jobs list {self.app}{_filters(wanted)} --limit {MOST} --json"
        return f"{listed} | jq -r '.[].id' | xargs -r -n1 reltask jobs {action} {self.option}" + (
            " --yes" if action == "cancel" else ""
        )


def _effort(task: TaskDefinition) -> tuple[int, bool, str]:
    return len(task.arguments.required), task.schedule is not None, task.name


def _example(hint: object) -> object:
    return EXAMPLES.get(get_origin(hint) or hint)


def _filters(wanted: JobFilter) -> str:
    return f" --state {wanted.state}{_lane(wanted)}"


def _lane(wanted: JobFilter) -> str:
    task = f" --task {quote(wanted.task)}" if wanted.task else ""
    return task + (f" --queue {quote(wanted.queue)}" if wanted.queue else "")
