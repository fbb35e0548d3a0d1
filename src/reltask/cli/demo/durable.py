"""`reltask demo durable`: orders go on while workers are killed between and inside their steps.

six orders ─► three workers ─► kill -9 the holder of an order, start another worker, and so on
                            ─► approve each order that waits
afterwards: every order has ended; each effect in the database is there once
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from reltask.app import App
from reltask.cli.demo.durable_app import CALLS, approved, create_app
from reltask.cli.demo.processes import WorkerProcesses
from reltask.model.durable import StepState
from reltask.model.job import State

ORDERS = 6
KILLS = 4
LONGEST = 55.0
READ_EVERY = 0.05
WORKERS = "reltask.cli.demo.durable_app:create_worker_app()"


class DurableSummary(Struct, frozen=True, kw_only=True):
    """What the ledger, the effects and the calls say."""

    orders: int
    succeeded: int
    killed: int
    effects: int
    duplicates: int
    missing: int
    calls: int
    """How often a function of a step was called."""
    repeated: int
    """How many of these calls were repeated because a worker had been killed before the record."""

    @property
    def is_good(self) -> bool:
        """Every order has ended, each effect is there once, and every kill has hit an order."""
        return self.succeeded == self.orders and self.duplicates == self.missing == 0 and self.killed == KILLS


def lines(summary: DurableSummary) -> Iterator[str]:
    """The summary in words."""
    yield f"{summary.succeeded} of {summary.orders} orders have ended; {summary.killed} workers were killed under way."
    yield f"Effects in the database: {summary.effects}; {summary.duplicates} twice, {summary.missing} missing."
    yield f"Functions were called {summary.calls} times, {summary.repeated} of them again after a kill."
    if summary.is_good:
        yield "Every effect exactly once. A function outside of a transaction may be called again: pass it its key."
    else:
        yield "This is not what reltask promises."


def play(folder: Path, say: Callable[[str], None]) -> DurableSummary:
    """Run the demo in this folder."""
    path, calls = folder / "demo.db", folder / "calls.txt"
    url = f"sqlite:///{path}"
    os.environ |= {"RELTASK_DATABASE_URL": url, CALLS: str(calls)}
    calls.touch()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table effects (what text)")
        connection.commit()
    app = create_app()
    try:
        with WorkerProcesses(folder, url, app=WORKERS) as processes:
            killed = Orders(app, processes, say).play()
            return _summary(app, path, calls, killed)
    finally:
        app.close()


class Orders:
    """What is done to the workers while the orders are under way."""

    def __init__(self, app: App, processes: WorkerProcesses, say: Callable[[str], None]) -> None:
        self._app = app
        self._processes = processes
        self._say = say
        self._until = time.monotonic() + LONGEST
        self._approved: set[Any] = set()

    def play(self) -> int:
        """Start the orders; kill, approve and wait. Returns how many workers were killed."""
        self._say(f"Three workers start on one SQLite file; {ORDERS} orders are enqueued.")
        for _ in range(3):
            self._processes.start()
        order = self._app.get_task("order")
        self._app.enqueue_many_sync(order.call(number=number) for number in range(1, ORDERS + 1))
        killed, quiet_until = 0, time.monotonic() + 1.0
        while self._orders() and time.monotonic() < self._until:
            self._approve()
            if killed < KILLS and time.monotonic() >= quiet_until and self._kill():
                killed += 1
                quiet_until = time.monotonic() + 1.5
            time.sleep(READ_EVERY)
        return killed

    def _orders(self) -> int:
        return len(self._app.jobs_sync(task="order", limit=ORDERS))

    def _kill(self) -> bool:
        """Kill the holder of an order that runs, and start another worker."""
        for job in self._app.jobs_sync(task="order", state=State.CLAIMED, limit=1):
            worker = self._processes.find(job.locked_by or "")
            if worker is None or worker.state != "running":
                continue
            worker.kill()
            last = self._app.job(job.id).steps_sync()
            after = f"after step {last[-1].name!r}" if last else "before its first step"
            self._say(f"{worker.name} runs an order, {after}: kill -9. {self._processes.start().name} starts.")
            return True
        return False

    def _approve(self) -> None:
        """Approve each order that waits for it, once or twice: the id makes it one signal."""
        for job in self._app.jobs_sync(task="order", state=State.SUSPENDED, limit=ORDERS):
            steps = self._app.job(job.id).steps_sync()
            waits = any(step.signal == approved.name and step.state is StepState.WAITING for step in steps)
            if waits and job.id not in self._approved:
                self._approved.add(job.id)
                for _ in range(2):
                    self._app.job(job.id).signal_sync(approved, "ada", id="click-1")


def _summary(app: App, path: Path, calls: Path, killed: int) -> DurableSummary:
    with closing(sqlite3.connect(path)) as connection:
        effects = Counter(what.rsplit(" ", 1)[0] for (what,) in connection.execute("select what from effects"))
    called = Counter(calls.read_text(encoding="utf-8").splitlines())
    succeeded = [run for run in app.runs_sync(task="order", limit=1_000) if run.outcome.ends_slot]
    kinds = Counter(what.split(" ", 1)[0] for what in effects)
    return DurableSummary(
        orders=ORDERS,
        succeeded=len(succeeded),
        killed=killed,
        effects=effects.total(),
        duplicates=effects.total() - len(effects),
        missing=2 * ORDERS - kinds["book"] - kinds["ship"],
        calls=called.total(),
        repeated=called.total() - len(called),
    )
