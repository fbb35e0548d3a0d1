"""Transactions on a user's connection: the one that is already open, or one that is begun for a task.

enqueue(…)                 join ─► enqueue_job(s).sql                     the user commits, or rolls back
ctx.transaction(…)         begin ─► the claim's check ─► the task's own statements ─► completion ─► commit
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self

from reltask.errors import AmbiguousError, SchemaError, UsageError
from reltask.stores.borrowed.link import Answer, Link, is_ambiguous, is_missing_table
from reltask.stores.statement import BY_POSITION, Statement, compile_statement
from reltask.stores.store import ended_inside


class BorrowedConnection(ABC):
    """A user's connection. Each store adds its verbs."""

    if_open = "Pass a connection without an open transaction: the block begins and commits its own."
    """The remedy if a transaction is already open."""

    def __init__(self, link: Link, schema: str) -> None:
        self._link = link
        self._schema = schema

    @property
    def connection(self) -> Any:
        """The user's own object."""
        return self._link.connection

    @property
    def is_async(self) -> bool:
        return self._link.is_async

    async def join(self) -> Self:
        if not await self._link.join():
            raise UsageError(
                "connection= has no open transaction and commits each statement at once.",
                remedy="Open a transaction on it, so that a rollback also removes the job.",
            )
        return self

    @asynccontextmanager
    async def transaction(self, *, timeout: timedelta) -> AsyncIterator[Self]:
        if self._link.is_open():
            raise UsageError("connection= already has an open transaction.", remedy=self.if_open)
        committing = False
        try:
            async with self._link.transaction():
                await self.join()
                await self._begun(timeout)
                yield self
                committing = True
        except Exception as error:
            if committing and is_ambiguous(error):
                raise AmbiguousError("commit: the answer was lost; it may or may not have been applied.") from error
            raise

    @abstractmethod
    async def _begun(self, timeout: timedelta) -> None:
        """Send the statements that must come first in a transaction."""

    @abstractmethod
    async def which_shard(self, places: Mapping[int, str]) -> int | None:
        """The number of the install in this database. `places`: the URL of each shard of the system."""

    async def execute(self, sql: str, /, *args: object, **named: object) -> None:
        await self._of_user(sql, args, named)

    async def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        return (await self._of_user(sql, args, named)).dicts()

    async def _of_user(self, sql: str, args: tuple[object, ...], named: dict[str, object]) -> Answer:
        if args and named:
            raise TypeError("Pass values by position, in the driver's style, or by name (:name), not both.")
        if not named:
            return await self._link.run(sql, args or None)
        return await self._send(compile_statement(sql, self._link.style), named)

    async def _own(self, statement: Statement, values: dict[str, object]) -> Answer:
        """One of reltask's own statements."""
        try:
            return await self._send(statement, values)
        except Exception as error:
            if is_missing_table(error, self._schema):
                raise SchemaError(
                    f"The database of connection= has no reltask tables in the schema {self._schema}.",
                    remedy="Pass a connection to the app's own database; if it is that one, run: reltask migrate",
                ) from error
            raise

    async def _send(self, statement: Statement, values: dict[str, object]) -> Answer:
        if self._link.style in BY_POSITION:
            return await self._link.run(statement.text, statement.arguments(values))
        return await self._link.run(statement.text, {name: values[name] for name in statement.names})

    def _refuse_ended(self) -> None:
        """Refuse to complete after a commit inside the block: those writes can no longer be rolled back."""
        if not self._link.is_open():
            raise ended_inside()
