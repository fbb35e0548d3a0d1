"""One interface for the connections of all libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from reltask.stores.statement import Style

Values = Mapping[str, object] | Sequence[object] | None
BEGIN_SQLITE = "begin immediate"
"""As all of reltask's write transactions begin: it waits for other writers now, instead of failing later."""

_CONNECTION_ENDS = ("08", "57P01", "57P02")
_MISSING = ("no such table: {}_", "Invalid object name '{}.")
"""The messages of SQLite and SQL Server for a missing table of a schema. PostgreSQL has a SQLSTATE for it."""


class Answer(NamedTuple):
    """The result of a statement."""

    columns: list[str]
    rows: list[Any]

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by their columns' names."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Link(Protocol):
    """One connection of one library. With a synchronous library no coroutine here ever waits."""

    connection: Any
    """The user's own object."""
    dialect: str
    style: Style
    is_async: bool

    def is_open(self) -> bool:
        """Whether a transaction is open."""
        ...

    async def join(self) -> bool:
        """Whether the owner can roll back the next statement; begins a transaction where the library would."""
        ...

    async def run(self, text: str, values: Values) -> Answer:
        """Run a statement in the driver's own style."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A transaction in the library's own way: committed when the block ends, rolled back when it raises."""
        ...


def read(cursor: Any) -> Answer:
    """The result in a DB-API cursor after a statement."""
    if cursor.description is None:
        return Answer([], [])
    return Answer([column[0] for column in cursor.description], cursor.fetchall())


def read_batch(cursor: Any) -> Answer:
    """The first result with columns of several statements sent together; reads all, as an error may follow it."""
    answer = read(cursor)
    while cursor.nextset():
        answer = answer if answer.columns else read(cursor)
    return answer


def is_ambiguous(error: BaseException) -> bool:
    """Whether a commit that failed with this error may have been applied: the answer or the connection was lost."""
    for one in _layers(error):
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if state:
            return str(state).startswith(_CONNECTION_ENDS)
        name = getattr(one, "sqlite_errorname", None)
        if name:
            return str(name).startswith("SQLITE_IOERR")
    return True


def is_missing_table(error: BaseException, schema: str) -> bool:
    """Whether the error says that reltask's tables do not exist."""
    states = {getattr(one, "sqlstate", None) or getattr(one, "pgcode", None) for one in _layers(error)}
    return bool(states & {"42P01", "3F000"}) or any(words.format(schema) in str(error) for words in _MISSING)


def _layers(error: BaseException) -> list[BaseException]:
    """The error and the driver's error inside it: SQLAlchemy has it in `orig`, Django as the cause."""
    found: list[BaseException] = []
    layer: Any = error
    while isinstance(layer, BaseException) and layer not in found:
        found.append(layer)
        layer = getattr(layer, "orig", None) or layer.__cause__
    return found
