"""What the pages read: the store's verbs, on a thread and a connection of the dashboard's own.

A dashboard inside a web application must not delay its enqueues, so it does not share their connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from reltask.errors import ReltaskError
from reltask.model.doctor import Finding, Level, diagnose
from reltask.model.overview import Overview
from reltask.model.screens import DeadLetter, RunSample
from reltask.producer.client import Client
from reltask.stores.store import Store

T = TypeVar("T")
DOCTOR_EVERY = 300.0
"""Seconds for which the doctor's findings are kept."""
GROUPED = 2_000
"""Dead letters that are grouped by error: each is a look into the ledger."""
SAMPLE = timedelta(hours=24)
"""Lengths and lateness are measured over the newest runs of this time."""


class Reader:
    """Asks the store."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._findings: tuple[float, list[Finding]] | None = None

    def ask(self, operation: Callable[[Store], Awaitable[T]], name: str = "dashboard") -> Coroutine[Any, Any, T]:
        """Run an operation on the dashboard's store."""
        return self.client.run(operation, name=name)

    async def overview(self) -> Overview:
        return await self.ask(lambda store: store.read_overview())

    async def dead_letters(self) -> list[DeadLetter]:
        """The newest, to be grouped by error."""
        return await self.ask(lambda store: store.list_dead_errors(most=GROUPED))

    async def sample(self) -> list[RunSample]:
        return await self.ask(lambda store: store.sample_runs(since=SAMPLE))

    async def findings(self) -> list[Finding]:
        """What the doctor says about the database; asked again after five minutes."""
        now = asyncio.get_running_loop().time()
        if self._findings is None or now - self._findings[0] > DOCTOR_EVERY:
            try:
                facts = await self.client.run_apart(lambda store: store.examine(), name="doctor")
                found = [one for one in diagnose(facts, skew=timedelta(0)) if not _is_of_workers(one)]
            except ReltaskError as error:
                found = [Finding("doctor", Level.NOTE, f"the doctor could not look: {error.message}")]
            self._findings = now, found
        return self._findings[1]


def _is_of_workers(finding: Finding) -> bool:
    """Whether it says that this user cannot run a worker: a dashboard's user need not."""
    return finding.check == "permissions" and finding.level is Level.NOTE
