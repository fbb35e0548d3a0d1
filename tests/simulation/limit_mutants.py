"""Limits, deliberately broken: the simulation must catch each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from reltask.stores.sqlite import limits
from tests.simulation.broken import Mutant, method, sql
from tests.simulation.database import Database
from tests.simulation.workload import CURRENT_WORLD

FREES = "reltask_jobs_free_their_places"
MARKS = "reltask_jobs_are_marked_again"
BY_TIME = (limits._KEY, limits._COUNT)
"""The statements that count tokens."""
Look_run = limits._Look._run
Key_take = limits._Key.take


def trigger(name: str, *changes: tuple[str, str]) -> Any:
    """A trigger with some text replaced."""

    def prepare(self: Database) -> None:
        (row,) = self.query(f"select sql from sqlite_master where name = '{name}'")
        text: str = row["sql"]
        for old, new in changes:
            if old not in text:
                raise LookupError(f"{name} has no {old!r}")
            text = text.replace(old, new)
        self.session.connection().execute(f"drop trigger {name}")
        self.session.connection().execute(text)

    return mock.patch.object(Database, "prepare", prepare)


def no_decrement_at_reclaim() -> Any:
    return trigger(
        FREES, ("when old.locked_by is not null\n", "when old.locked_by is not null and new.losses <= old.losses\n")
    )


def no_mark_at_a_retry() -> Any:
    return trigger(MARKS, ("old.locked_by is not null or", "0 or"), ("new.due_at <> old.due_at or", ""))


def tokens_by_the_workers_clock(self: limits._Look, which: int, **parameters: object) -> Any:
    """Tokens come with the time of the worker's machine."""
    if which in BY_TIME:
        nodes = CURRENT_WORLD.get().nodes  # type: ignore[attr-defined]  # the world itself
        (node,) = (node for node in nodes if node.name == self._request.worker)
        offset = int(node.wall_offset.total_seconds() * 1_000_000)
        parameters["now"] = self._transaction.now + offset
    return Look_run(self, which, **parameters)


def place_for_nothing(self: limits._Key, *, resumes: bool) -> None:
    """A function that resumes takes no place, either."""
    Key_take(self, resumes=resumes)
    if resumes:
        self.room, self.running = self.room + 1, self.running - 1


def token_for_each_resume(self: limits._Key, *, resumes: bool) -> None:  # noqa: ARG001 - it is ignored
    Key_take(self, resumes=True)


@contextmanager
def first_key_alone() -> Iterator[None]:
    """A job that has several limits takes a place of the one at which it waits."""

    def takes(self: limits._Look, job: dict[str, Any]) -> bool:
        return Look_takes(self, {**job, "limits": None})

    with mock.patch.object(limits._Look, "_takes", takes):
        yield


Look_takes = limits._Look._takes

LIMIT_MUTANTS = [
    Mutant("a place is not free after a reclaim", no_decrement_at_reclaim),
    Mutant("tokens by the worker's clock", method(limits._Look, "_run", tokens_by_the_workers_clock)),
    Mutant("a start spends no token", method(limits._Key, "take", token_for_each_resume)),
    Mutant("a function that resumes takes no place", method(limits._Key, "take", place_for_nothing)),
    Mutant("a job takes a place of one of its limits", first_key_alone),
    Mutant("no mark when a job can be claimed again", no_mark_at_a_retry),
    Mutant(
        "a look forgets the places that became free",
        lambda: sql("claim_limited", ("returning freed;", "returning 0 as freed;")),
    ),
    Mutant(
        "a raised limit leaves no mark",
        lambda: sql("write_limit", ("where waiting.key is not null\n  and", "where waiting.key is null\n  and")),
    ),
    Mutant(
        "a limited claim overlooks paused tasks",
        lambda: sql(
            "claim_limited",
            ("jobs.task not in (select name from reltask_pauses where kind = 'task')", "1 = 1"),
        ),
    ),
]
