"""Is it my turn? Four ways for many workers to share out work that is nobody's job, behind one question.

    everyone   each worker, always                          ●●●●   N workers do N times the work
    advisory   whoever holds a lock of its connection       ●···   one works; each of the others tries now and then
    stealing   each worker, a small batch at a staggered    ◔◔◔◔   N workers ask; a heap of work is shared out,
               time; rows that others hold are skipped             because no two batches meet
    lease      whoever holds the row in `leases`            ●···   one works; the others try one after another

Only the lease has a term, so only its holder's writes can be refused when somebody else has taken over meanwhile. The
other three need not refuse anything: what they do harms nobody when it is done twice at once.

An advisory lock ends with its connection, and the database notices that a process has died sooner than the process
notices that its connection has: so its holder asks, over that very connection, before each turn.
"""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from msgspec import Struct

from reltask import events
from reltask.errors import DatabaseError
from reltask.leases.leader import Leader
from reltask.model.clock import Clock
from reltask.model.lease import MAINTENANCE, Term
from reltask.model.settings import LEASE_TTL, MaintenanceSettings
from reltask.service import LoopHost
from reltask.stores.store import BATCH, Store

TRY_EVERY = (7.5, 12.5)
"""Whoever waits for an advisory lock tries again after so many seconds, at least and at most."""
STOLEN = 100
"""A batch that is stolen is small, so that there is something left for the others."""
STAGGER = (0.75, 1.25)
"""Each time comes after this share of its interval, at least and at most."""
STALLED_AFTER = 2
"""Whoever has seldom something to do is not stalled before so many intervals have passed."""


class Turn(Struct, frozen=True):
    """Leave to work now."""

    leader: Term | None = None
    """What fences the work's writes, where there is something to fence them with."""


class Coordination(ABC):
    """Decides whose turn it is."""

    batch = BATCH
    """How much to do at once."""

    @abstractmethod
    async def turn(self) -> Turn | None:
        """Leave to work, or None: not now."""

    # What follows does nothing unless a coordination has something to do here.

    async def start(self) -> None:  # noqa: B027
        """Begin to wait for a turn."""

    async def stop(self) -> None:  # noqa: B027
        """Let somebody else have the turn, at once. Takes a bounded time, whatever the database does."""

    def ask_again(self) -> float | None:
        """Seconds until it is worth asking again; None: whoever asked is woken."""
        return None

    def stagger(self, every: float, *, first: bool) -> float:
        """Seconds until something that is done this often is due."""
        return 0.0 if first else every

    def worked(self, *, items: int, errors: int) -> None:  # noqa: B027
        """Something was done in this turn."""

    def hint(self, name: str | None) -> None:  # noqa: B027
        """Somebody has given a lease back; None: perhaps."""


class Everyone(Coordination):
    """Always."""

    async def turn(self) -> Turn | None:
        return Turn()


class Stealing(Coordination):
    """Always, but at its own times, and a little at a time."""

    batch = STOLEN

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def turn(self) -> Turn | None:
        return Turn()

    def stagger(self, every: float, *, first: bool) -> float:
        return every * self._rng.uniform(*((0.0, 1.0) if first else STAGGER))


class Advisory(Coordination):
    """While a connection of its own holds the database's lock, and lives."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._held = contextlib.AsyncExitStack()
        self._is_alive: Callable[[], Awaitable[bool]] | None = None

    async def turn(self) -> Turn | None:
        if self._is_alive is not None and not await self._is_alive():
            await self.stop()
        if self._is_alive is None:
            self._is_alive = await self._held.enter_async_context(self._store.advisory_lock(MAINTENANCE))
        if self._is_alive is None:
            await self.stop()
            return None
        return Turn()

    async def stop(self) -> None:
        self._is_alive = None
        with contextlib.suppress(DatabaseError):  # a connection that is gone holds no lock
            await self._held.aclose()

    def ask_again(self) -> float | None:
        return self._rng.uniform(*TRY_EVERY)


class MaintenanceLease(Coordination):
    """While it leads. Its writes carry the term.

    It beats through the worker's own store: 200 workers need not 200 more connections for one of them to lead. A worker
    whose store is in trouble loses the lease, and cannot do the work either.
    """

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._host = LoopHost(leader)
        self._errors = 0

    async def start(self) -> None:
        await self._host.start()

    async def turn(self) -> Turn | None:
        term = self._leader.term
        return None if term is None else Turn(term)

    async def stop(self) -> None:
        await self._host.stop()

    def worked(self, *, items: int, errors: int) -> None:
        """Errors are published with the next success: a leader that only fails has finished nothing, and stalls."""
        self._errors += errors
        if not errors:
            self._leader.worked(items=items, errors=self._errors)
            self._errors = 0

    def hint(self, name: str | None) -> None:
        self._leader.hint(name)


def make_coordination(
    store: Store,
    settings: MaintenanceSettings,
    *,
    worker: str,
    clock: Clock,
    rng: random.Random,
    emit: events.Subscriber,
    wake: Callable[[], None],
) -> Coordination:
    """The coordination that the settings choose; `wake` is called when the turn comes."""
    match settings.coordination:
        case "everyone":
            return Everyone()
        case "stealing":
            return Stealing(rng)
        case "advisory":
            return Advisory(store, rng)
        case _:
            return MaintenanceLease(
                Leader(
                    store,
                    name=MAINTENANCE,
                    holder=worker,
                    ttl=settings.lease_ttl or LEASE_TTL,
                    clock=clock,
                    rng=rng,
                    emit=emit,
                    rotate_after=settings.rotate_after or None,
                    max_stall=max(settings.max_stall, STALLED_AFTER * settings.shortest),
                    acquired=lambda _: wake(),
                )
            )
