"""An advisory lock, which ends with its connection.

The server releases the lock when the connection ends, for whatever reason. The holder must notice that, too, because
its process may still run. So the lock has a connection of its own, and its holder can check that the connection still
answers and still has the lock. Keepalives let the server notice within half a minute that the client is gone.
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
    """Try to get the lock. Yields a function that checks whether it is still held; None: another process holds it."""
    target = read_url(url)
    if target.pgbouncer:
        raise UsageError(
            "advisory locks do not work behind PgBouncer, which assigns a connection to each statement anew.",
            remedy='Set maintenance.coordination to "lease", or connect to PostgreSQL directly.',
        )
    connection = await connect(url, options, settings=_KEEPALIVE)
    try:
        yield await _try(connection, name, target.schema)
    finally:
        await _close(connection)


async def _try(connection: asyncpg.Connection, name: str, schema: str) -> Callable[[], Awaitable[bool]] | None:
    attempt, question = load("postgres", "advisory_lock", "numbered", schema)

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
