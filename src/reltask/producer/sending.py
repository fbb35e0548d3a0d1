"""Where a write of a producer goes: into an open transaction, or into a statement of its own.

a connection is given ──► the user's open transaction on it: applied by the user's commit
a block is open ────────► the task's own transaction: applied when the block ends
neither ────────────────► a statement of its own, then a signal to the workers
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

from reltask.errors import UsageError
from reltask.producer.client import Client, Operation, refuse_running_loop
from reltask.producer.transaction import TaskTransaction, current, run_here
from reltask.stores.store import BATCH, Borrowed, Store, Transaction

T = TypeVar("T")
Place = Store | Transaction | TaskTransaction
"""Where something is written or read: in a statement of its own, or in an open transaction."""
Joined = Callable[[Transaction | TaskTransaction], Coroutine[Any, Any, T]]
"""What to write inside an open transaction."""


class Sender:
    """Sends the writes of one app."""

    def __init__(self, client: Client, *, borrow: Callable[[object], Borrowed]) -> None:
        self.client = client
        self.wakes: set[Callable[[], None]] = set()
        """Callbacks that wake this process's own workers, without a signal from the database."""
        self._borrow = borrow

    def send(self, joined: Joined[T], alone: Operation[T], connection: object, *, name: str) -> Coroutine[Any, Any, T]:
        """Write in the user's transaction on `connection`, in the task's open block, or alone."""
        if connection is not None:
            return _join(self._borrowed(connection, name, is_async=True), joined)
        block = current.get()
        if block is not None and block.open:
            return joined(block)
        return self.client.run(alone, name=name)

    def send_sync(self, joined: Joined[T], alone: Operation[T], connection: object, *, name: str) -> T:
        """`send` for synchronous code.

        With `connection` also on a running loop: it blocks that anyway.
        """
        if connection is not None:
            return run_here(_join(self._borrowed(connection, name, is_async=False), joined))
        block = current.get()
        if block is not None and block.open:
            refuse_running_loop(name)
            return block.wait_for(joined(block))
        return self.client.run_sync(alone, name=name)

    async def signal(self, store: Store) -> None:
        """Wake the workers of this process and of others."""
        for wake in list(self.wakes):
            wake()
        await store.signal()

    def _borrowed(self, connection: object, name: str, *, is_async: bool) -> Borrowed:
        block = current.get()
        if block is not None and block.open:
            raise UsageError(
                f"{name}() joins the open block by itself, and can join no other.", remedy="Leave out connection=."
            )
        borrowed = self._borrow(connection)
        if borrowed.is_async and not is_async:
            raise UsageError(
                f"{name}_sync() cannot wait for an asynchronous connection.", remedy=f"Write: await {name}()."
            )
        if is_async and not borrowed.is_async:
            raise UsageError(
                f"{name}() takes asynchronous connections.", remedy=f"With a synchronous one call {name}_sync()."
            )
        return borrowed


async def _join(borrowed: Borrowed, joined: Joined[T]) -> T:
    """Write in the user's open transaction. No signal: nothing exists before the user's commit."""
    return await joined(await borrowed.join())


async def owners_of(names: Sequence[tuple[str, str]], place: Place) -> dict[tuple[str, str], UUID]:
    """The jobs that have these (task, key) names."""
    found: dict[tuple[str, str], UUID] = {}
    for start in range(0, len(names), BATCH):
        found |= await place.read_keys(names[start : start + BATCH])
    return found
