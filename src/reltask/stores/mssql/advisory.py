"""An application lock, which ends with its connection.

The server releases the lock when the connection ends, for whatever reason. The holder must notice that, too, because
its process may still run. So the lock has a connection of its own, and its holder can check that the connection still
answers and still has the lock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from reltask.errors import ReltaskError
from reltask.stores.mssql.connections import Connections, ThreadedConnection, cause, failed, fetch
from reltask.stores.mssql.values import Row
from reltask.stores.statement import load_batch


@asynccontextmanager
async def advisory_lock(connections: Connections, name: str) -> AsyncIterator[Callable[[], Awaitable[bool]] | None]:
    """Try to get the lock. Yields a function that checks whether it is still held; None: another process holds it."""

    async def is_alive() -> bool:
        try:
            return bool((await _ask(line, "advisory_lock_held", name, connections))[0]["held"])
        except ReltaskError:
            return False

    try:
        async with connections.take() as line:
            locked = (await _ask(line, "advisory_lock", name, connections))[0]["granted"] >= 0
            try:
                yield is_alive if locked else None
            finally:
                # If the driver has a pool, closing the connection would not end the session.
                with suppress(ReltaskError):
                    await _ask(line, "advisory_unlock", name, connections)
    finally:
        await connections.close()


async def _ask(line: ThreadedConnection, verb: str, name: str, connections: Connections) -> list[Row]:
    statement = load_batch("mssql", verb, "qmark", connections.schema)
    try:
        return await line.call(lambda connection: fetch(connection, statement, {"name": name}), connections.patience)
    except Exception as error:  # noqa: BLE001 - every error of the driver becomes one of reltask's errors
        raise failed(error, verb=verb, writes=False) from cause(error)
