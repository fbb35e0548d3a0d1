"""The worked examples of durable functions do what they say, over days of virtual time."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import click
import pytest

from reltask import App
from reltask.cli import cli
from reltask.testing import VirtualTime, virtual_time
from tests.docs.pages import ROOT

DAY = 86_400.0


def load(name: str) -> ModuleType:
    """A fresh copy of an example: its module-level lists are empty."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["durable_order", "durable_approval", "durable_import"])
def test_the_commands_of_an_example_are_accepted(name: str) -> None:
    """As its docstring writes them, with an id for JOB."""
    lines = [line.strip() for line in (load(name).__doc__ or "").splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("reltask ")]
    assert commands
    for words in commands:
        group: click.Command = cli
        context = click.Context(cli)
        rest = [str(uuid4()) if word == "JOB" else word for word in words]
        while isinstance(group, click.Group):
            _, found, rest = group.resolve_command(context, rest)
            assert found is not None
            group, context = found, click.Context(found, parent=context)
        group.make_context(words[0], rest)


class Played:
    """An example's app on one file, in virtual time."""

    def __init__(self, name: str, time: VirtualTime, folder: Path) -> None:
        self.module = load(name)
        self.path = folder / "example.db"
        self.app: App = self.module.create_app(
            f"sqlite:///{self.path}",
            settings={"maintenance.coordination": "off", "worker.poll": "1h"},
            clock=time.clock,
            now=time.now,
            inline=True,
        )
        self._time = time

    def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        """Run a scenario beside a worker."""

        async def with_worker() -> Any:
            async with self.app.worker():
                return await scenario()

        return self._time.run(with_worker())

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    with virtual_time() as time:
        yield time


def test_an_order_waits_for_the_warehouse_and_ships_in_parallel(time: VirtualTime, tmp_path: Path) -> None:
    """Charged and booked once although the function is resumed; the labels come in order."""
    played = Played("durable_order", time, tmp_path)
    order = played.module.Order(number=42, parcels=3)

    async def scenario() -> list[str]:
        job = await played.app.get_task("fulfil").enqueue(order=order)
        await asyncio.sleep(3 * DAY)
        view = await job.view()
        assert view is not None
        assert (view.state, view.locked_by) == ("suspended", None)
        await job.signal(played.module.packed, played.module.Packed(by="ada"), id="scan-1")
        return list(await job.result(timeout="1d"))

    assert played.run(scenario) == ["42-0", "42-1", "42-2"]
    assert len(played.module.charges) == 1
    assert [number for (number,) in played.rows("select number from bookings")] == [42]


def test_an_approval_escalates_after_two_days(time: VirtualTime, tmp_path: Path) -> None:
    """No answer for two days: the manager is asked, once, and the manager's answer counts."""
    played = Played("durable_approval", time, tmp_path)
    module = played.module

    async def scenario() -> str:
        job = await played.app.get_task("approve").enqueue(expense=1200)
        await asyncio.sleep(3 * DAY)
        assert [mail.partition(":")[0] for mail in module.mails] == ["lead", "manager"]
        await job.signal(module.decision, module.Decision(ok=True, by="grace"))
        return str(await job.result(timeout="1d"))

    assert played.run(scenario) == "grace"
    assert len(module.mails) == 2


def test_an_approval_in_time_asks_no_one_else(time: VirtualTime, tmp_path: Path) -> None:
    """A refusal within two days cancels the job; no second mail is sent."""
    played = Played("durable_approval", time, tmp_path)
    module = played.module

    async def scenario() -> list[str]:
        job = await played.app.get_task("approve").enqueue(expense=1200)
        await asyncio.sleep(DAY)
        await job.signal(module.decision, module.Decision(ok=False, by="ada"))
        await asyncio.sleep(5 * DAY)
        return [run.outcome for run in await job.runs()]

    assert played.run(scenario) == ["cancelled", "suspended"]
    assert len(module.mails) == 1


def test_an_import_goes_on_with_the_chunk_that_was_not_committed(
    time: VirtualTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row once, although the source fails in the middle of a slot, over several slots of one job."""
    played = Played("durable_import", time, tmp_path)
    store = played.module.store
    failed: list[int] = []

    async def failing(tx: Any, start: int) -> int:
        if start == 60 and not failed:
            failed.append(start)
            raise ConnectionError("the source is away")
        return int(await store(tx, start))

    monkeypatch.setattr(played.module, "store", failing)

    async def scenario() -> None:
        await asyncio.sleep(DAY)

    played.run(scenario)
    assert failed == [60]
    assert [value for (value,) in played.rows("select value from imported order by value")] == played.module.SOURCE
    outcomes = played.rows("select slot_no, outcome from reltask_runs where task = 'import_all' order by fence")
    assert outcomes == [(1, "succeeded"), (2, "failed"), (2, "succeeded"), (3, "succeeded")]
