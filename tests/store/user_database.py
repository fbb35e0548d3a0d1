"""A user's database with its own table, an app on it, and one kind of connection to both."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from reltask import App
from tests import mssql_server
from tests.store.connections import ConnectionKind


class UserDatabase:
    """What the tests of borrowed connections share."""

    def __init__(self, url: str, kind: ConnectionKind) -> None:
        self.url = url
        self.kind = kind
        self.app = App(url, settings={"worker.shutdown_grace": "0s", "maintenance.coordination": "off"})
        self.done: list[int] = []

        @self.app.task
        async def note(number: int) -> None:
            self.done.append(number)

        self.task = note

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def clear(self) -> None:
        """An empty database with the tables of reltask and of the user."""
        self.app.status_sync()  # creates reltask's tables in a new file
        for table in ("jobs", "runs", "signals", "marks"):
            self.ask(f"delete from {self.own(table)}")
        self.ask("drop table if exists effects")
        self.ask("create table effects (note varchar(100))")

    def own(self, table: str) -> str:
        """The full name of one of reltask's tables."""
        return f"reltask_{table}" if self.is_sqlite else f"reltask.{table}"

    def ask(self, sql: str) -> list[Any]:
        """Run a statement on a separate connection, also while a loop is running here."""
        if self.is_sqlite:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                return connection.execute(sql).fetchall()
        if self.url.startswith("mssql"):
            with closing(mssql_server.open_connection(self.url)) as connection:
                return mssql_server.run(connection, sql)

        async def fetch() -> list[Any]:
            connection = await asyncpg.connect(self.url)
            try:
                return [tuple(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        with ThreadPoolExecutor(1) as elsewhere:  # an asynchronous test's own loop goes on waiting
            return elsewhere.submit(lambda: asyncio.run(fetch())).result()

    def notes(self) -> list[str]:
        """The notes in the user's table."""
        return [note for (note,) in self.ask("select note from effects order by note")]

    def jobs(self) -> set[UUID]:
        return {UUID(str(job_id)) for (job_id,) in self.ask(f"select id from {self.own('jobs')}")}

    def signals(self) -> list[str]:
        """The ids of the signals that were sent, each with its mark."""
        (marks,) = self.ask(f"select count(*) from {self.own('marks')}")
        found = [id_ for (id_,) in self.ask(f"select id from {self.own('signals')} order by id")]
        assert marks == (len(found),)
        return found

    def outcomes(self) -> list[str]:
        """The outcomes in the ledger, oldest run first."""
        return [outcome for (outcome,) in self.ask(f"select outcome from {self.own('runs')} order by fence")]

    def work(self) -> None:
        """Run what is due with a worker."""

        async def drain() -> None:
            async with self.app.worker() as worker:
                await worker.drained()

        asyncio.run(drain())


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory}/user.db"
