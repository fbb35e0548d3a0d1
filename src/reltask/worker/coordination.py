"""Is it my turn? Four ways for many workers to share the maintenance, behind one question.

    everyone   each worker, always                          ●●●●   N workers do N times the work
    advisory   the worker whose connection holds a lock     ●···   one works; the others try every 10 s or so
    stealing   each worker, a small batch at a staggered    ◔◔◔◔   N workers ask; a backlog is shared,
               time; rows that others hold are skipped             because no two batches overlap
    lease      the worker that holds the row in `leases`    ●···   one works; the others try one after another

Only the lease has a term. So only its holder's writes can be refused after another worker has taken
over. The other three refuse nothing: each step is safe when two workers do it at once.

An advisory lock ends with its connection. The database may end that connection before the holder
notices, so the holder asks, over the same connection, before each turn.
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
"""Seconds between two tries for an advisory lock, at least and at most."""
STOLEN = 100
"""Rows in a batch of `stealing`: small, so that the other workers get a share."""
STAGGER = (0.75, 1.25)
"""With `stealing`, a step comes again after this share of its interval, at least and at most."""
STALLED_AFTER = 2
"""A leader does not count as stalled before this many of its shortest intervals have passed."""


class Turn(Struct, frozen=True):
    """Permission to work now."""

    leader: Term | None = None
    """The term that fences the writes; None: the coordination has no terms."""


class Coordination(ABC):
    """Decides whose turn it is."""

    batch = BATCH
    """How much to do at once."""

    @abstractmethod
    async def turn(self) -> Turn | None:
        """Permission to work, or None: not now."""

    # The following methods do nothing by default.

    async def start(self) -> None:  # noqa: B027
        """Begin to wait for a turn."""

    async def stop(self) -> None:  # noqa: B027
        """Let another worker have the turn, at once.

        Bounded in time, whatever the database does.
        """

    def ask_again(self) -> float | None:
        """Seconds until it is worth asking again; None: the caller is woken."""
        return None

    def stagger(self, every: float, *, first: bool) -> float:
        """Seconds until a step with this interval is due."""
        return 0.0 if first else every

    def worked(self, *, items: int, errors: int) -> None:  # noqa: B027
        """A step of this turn has ended."""

    def hint(self, name: str | None) -> None:  # noqa: B027
        """The lease of this name was given back; None: any lease may have been."""


class Everyone(Coordination):
    """Every worker, at all times."""

    async def turn(self) -> Turn | None:
        return Turn()


class Stealing(Coordination):
    """Every worker, at staggered times and in small batches."""

    batch = STOLEN

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def turn(self) -> Turn | None:
        return Turn()

    def stagger(self, every: float, *, first: bool) -> float:
        return every * self._rng.uniform(*((0.0, 1.0) if first else STAGGER))


class Advisory(Coordination):
    """The worker whose own connection holds the database's advisory lock, while it lives."""

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
    """The worker that leads. Its writes carry the term.

    It beats through the worker's own store, so that 200 workers need no 200 further connections for
    one of them to lead. A worker whose store fails loses the lease, and could not do the work
    either.
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
        """Publish errors with the next success: a leader that only fails finishes nothing, and stalls."""
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
