"""A lock that ends with its connection.

The server gives it up when the connection ends, however that happens; who held it must notice too, because its process
may live on. So it has a connection of its own, and can be asked whether that still answers and still has the lock.
Keepalives make the server notice within half a minute that the other end has vanished without a word.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from reltask.errors import UsageError
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.driver import asyncpg
from reltask.stores.postgres.errors import quotable, statement_failed
from reltask.stores.postgres.url import read_url
from reltask.stores.statement import load

_BROKEN = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_ANSWERS_WITHIN = 5.0
"""Seconds after which a connection that does not answer counts as dead."""
_KEEPALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}


@asynccontextmanager
async def advisory_lock(
    url: str, options: PostgresOptions, name: str
) -> AsyncIterator[Callable[[], Awaitable[bool]] | None]:
    """Try for the lock; None: somebody has it. Otherwise a question: is it still ours?"""
    if read_url(url).pgbouncer:
        raise UsageError(
            "PgBouncer lends connections statement by statement, so a lock cannot live as long as one.",
            remedy='Choose the coordination "lease", or a URL that leads to PostgreSQL itself.',
        )
    connection = await connect(url, options, settings=_KEEPALIVE)
    try:
        yield await _try(connection, name)
    finally:
        await _close(connection)


async def _try(connection: asyncpg.Connection, name: str) -> Callable[[], Awaitable[bool]] | None:
    attempt, question = load("postgres", "advisory_lock", "numbered")

    async def is_alive() -> bool:
        try:
            return bool(await connection.fetchval(question.text, name, timeout=_ANSWERS_WITHIN))
        except _BROKEN:
            return False

    try:
        locked = await connection.fetchval(attempt.text, name)
    except _BROKEN as error:
        raise statement_failed(error, verb="advisory_lock", writes=False) from quotable(error)
    return is_alive if locked else None


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=2.0)
    except _BROKEN:
        connection.terminate()
