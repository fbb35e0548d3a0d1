"""`app.lease(…)`: run code in one process at a time, without workers and without jobs.

    your code, any loop or thread                      a private loop for leases only (see `client.py`)
    ─────────────────────────────                      ─────────────────────────────────────────────────
    async with app.lease("reports") as lease:   ──►    a Leader with a connection of its own: try, heartbeats …
        lease.held, lease.lost                  ◄──    trust by monotonic time; the loss is announced once
        await lease.guard(connection)                  (runs on your connection: locks the row, names the term)
    leaving the block                           ──►    resign, signal, close

Heartbeats depend neither on your event loop nor on the calls that the app makes for you: that loop and its thread serve
leases only, and no subscriber runs there. So code that blocks its loop keeps its lease, and so does a process that
audits a large ledger. The lease belongs to the process that acquired it: in a forked child it is not held, and a child
that leaves the block does not resign it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta

from msgspec import Struct

from reltask import events
from reltask.errors import AmbiguousError, DatabaseError, LeaseTaken, TransientError, UsageError
from reltask.leases.candidacy import RESIGNED
from reltask.leases.handle import Lease, LossEvent
from reltask.leases.leader import TRY_SHARE, Leader
from reltask.model.clock import Clock
from reltask.model.duration import Duration, format_duration, parse_duration
from reltask.model.lease import LeaseAnswer, Term
from reltask.model.pace import SHORTEST
from reltask.model.views import LeaseView
from reltask.producer.client import Client, refuse_running_loop
from reltask.service import LoopHost, worker_id
from reltask.stores.store import Borrowed, Store

LONGEST_TRY = timedelta(seconds=5)
LONGEST_NAME = 200
RESERVED = "reltask:"
"""Names with this prefix are reserved for reltask's own leases."""


class LeaseOptions(Struct, frozen=True, kw_only=True):
    """The options of one `app.lease(…)`."""

    name: str
    ttl: timedelta
    wait: bool
    patience: timedelta | None
    """How long to wait; None: without a limit."""
    rotate_after: timedelta | None
    max_stall: timedelta | None

    @property
    def try_patience(self) -> timedelta:
        """How long one try may take: a busy database delays a caller that does not wait, or leaves, no longer."""
        return min(self.ttl / TRY_SHARE, LONGEST_TRY)


def lease_options(
    name: str, *, ttl: Duration, wait: bool | Duration, rotate_after: Duration | None, max_stall: Duration | None
) -> LeaseOptions:
    """The checked options."""
    _check_name(name)
    length = _length("ttl", ttl)
    if length < SHORTEST:
        raise UsageError(
            f"ttl: {format_duration(length)} is too short for a lease.",
            remedy=f"Write at least {format_duration(SHORTEST)}; it is renewed five times per TTL.",
        )
    stall = None if max_stall is None else _length("max_stall", max_stall)
    if stall == timedelta(0):
        raise UsageError("max_stall: 0s would lose the lease at once.", remedy="Leave it out for no limit.")
    return LeaseOptions(
        name=name,
        ttl=length,
        wait=wait is not False,
        patience=None if isinstance(wait, bool) else _length("wait", wait),
        rotate_after=None if rotate_after is None else _length("rotate_after", rotate_after) or None,
        max_stall=stall,
    )


def _check_name(name: str) -> None:
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be the name of a lease.",
            remedy=f'Write 1 to {LONGEST_NAME} printable characters, such as "reports".',
        )
    if name.startswith(RESERVED):
        raise UsageError(
            f"Lease names that begin with {RESERVED!r} are reserved.", remedy="Choose a name with another prefix."
        )


def _length(name: str, value: Duration) -> timedelta:
    try:
        return parse_duration(value, name=name)
    except ValueError as error:
        raise UsageError(str(error)) from None


class Holding:
    """One block's lease on the private loop: from the first try to the resignation."""

    def __init__(self, host: LeaseHost, options: LeaseOptions) -> None:
        self.over = False
        self._pid = os.getpid()
        self._host = host
        self._options = options
        self._lost = LossEvent()
        self._leader: Leader | None = None
        self._service: LoopHost | None = None
        self._store: Store | None = None
        self._outcome: asyncio.Future[Term | None] | None = None
        self._error: Exception | None = None
        self._ending = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._given_back = Future[None]()

    @property
    def is_mine(self) -> bool:
        """Whether this process has a lease to resign: a forked child has none."""
        return not self.over and self._pid == os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether it belongs to the running loop."""
        return self._loop is asyncio.get_running_loop()

    async def take(self, store: Store) -> Lease:
        """Wait for the lease as the options say; `store` is used to find out which process holds it."""
        options, holder = self._options, worker_id(None, self._host.rng)
        self._loop = asyncio.get_running_loop()
        self._outcome = self._loop.create_future()
        self._store = self._host.own_store(timeout=options.try_patience)
        self._leader = self._make_leader(self._store, holder)
        self._service = LoopHost(self._leader)
        try:
            async with contextlib.AsyncExitStack() as listening:
                if options.wait:
                    await listening.enter_async_context(self._store.listen(_ignore, lease=self._leader.hint))
                await self._begin(self._service)
                term = await self._won(store)
        except BaseException:
            await self._end()
            raise
        return Lease(term, holder=holder, leader=self._leader, lost=self._lost, borrow=self._host.borrow)

    async def _begin(self, service: LoopHost) -> None:
        if self.over:
            raise self._given_up()  # the caller has already left
        await service.start()

    async def give_back(self) -> None:
        """Resign, signal and close. Takes a bounded time and raises nothing: it must not hide an error of the block.

        When called on another loop (its own is being closed and accepts no more work), wait until its own loop has
        done it.
        """
        if self._loop is not None and not self.is_here:
            await asyncio.shield(asyncio.wrap_future(self._given_back))
            return
        self.over = True
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(self._given_up())
            self._outcome.exception()  # marks it as retrieved, in case no caller waits any more
        try:
            await self._end()
        finally:
            self._host.forget(self)
            if not self._given_back.done():
                self._given_back.set_result(None)

    async def _end(self) -> None:
        """Stop the leader, announce the loss, close the store.

        A cancelled wait and the end of its block may both call this; the lock lets the first finish resigning.
        """
        async with self._ending:
            service, self._service = self._service, None
            if service is not None:
                await service.stop()
            self._lost.announce(RESIGNED)
            store, self._store = self._store, None
            if store is not None:
                await store.close()

    def _given_up(self) -> UsageError:
        return UsageError(f"The wait for lease {self._options.name} was cancelled, or the app was closed.")

    def _make_leader(self, store: Store, holder: str) -> Leader:
        options, host = self._options, self._host
        return Leader(
            store,
            name=options.name,
            holder=holder,
            ttl=options.ttl,
            clock=host.clock,
            rng=host.rng,
            emit=host.emit,
            rotate_after=options.rotate_after,
            max_stall=options.max_stall,
            acquired=self._decide,
            lost=self._lost.announce,
            tried=self._tried,
            once=True,
            waits=options.wait,
            patience=options.try_patience,
        )

    def _decide(self, outcome: Term | Exception | None) -> None:
        """End the wait: with a term, an error, or None because another process holds the lease."""
        if self._outcome is None or self._outcome.done():
            return
        if isinstance(outcome, Exception):
            self._outcome.set_exception(outcome)
        else:
            self._outcome.set_result(outcome)

    def _tried(self, outcome: LeaseAnswer | Exception) -> None:
        """A try did not win: continue to wait, unless the caller does not wait or waiting cannot help."""
        self._error = None
        if isinstance(outcome, TimeoutError):
            self._error = AmbiguousError(
                "acquire_lease: no answer in time.", remedy="Check that the database is reachable and not overloaded."
            )
        elif isinstance(outcome, Exception):
            self._error = outcome
        if not self._options.wait or not isinstance(self._error, TransientError | AmbiguousError | None):
            self._decide(self._error)

    async def _won(self, store: Store) -> Term:
        assert self._outcome is not None
        patience = self._options.patience
        term = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if patience is None else patience.total_seconds()):
                term = await self._outcome
        if term is not None:
            return term
        raise await self._taken(store) if self._error is None else self._error

    async def _taken(self, store: Store) -> LeaseTaken:
        views: list[LeaseView] = []
        with contextlib.suppress(DatabaseError):
            views = [view for view in await store.list_leases() if view.name == self._options.name and view.held]
        who = f"{views[0].holder}, term {views[0].term}" if views else "another process"
        waited = "" if self._options.patience is None else f" after a wait of {format_duration(self._options.patience)}"
        return LeaseTaken(
            f"Lease {self._options.name} is held by {who}{waited}.",
            remedy="wait=True waits without a limit; `reltask leases` lists all holders.",
        )


class LeaseHost:
    """What leases need from their app, and the open blocks."""

    def __init__(
        self,
        client: Client,
        make_store: Callable[[], Store],
        emit: events.Subscriber,
        clock: Clock,
        rng: random.Random,
        *,
        inline: bool,
    ) -> None:
        self.clock = clock
        self.rng = rng
        self.emit = emit
        self._client = client
        self._make_store = make_store
        self._inline = inline
        self._open: set[Holding] = set()
        client.leave = self._leave_loop

    def own_store(self, *, timeout: timedelta) -> Store:
        """A store with a connection of its own, for one leader; a file that is busy delays no other leader."""
        return self._make_store().dedicated(timeout=timeout, inline=self._inline)

    def borrow(self, connection: object) -> Borrowed:
        """A wrapped connection of the user's own."""
        return self._make_store().borrow(connection)

    @contextlib.asynccontextmanager
    async def hold(self, options: LeaseOptions) -> AsyncIterator[Lease]:
        """The block of asynchronous code."""
        holding = self._holding(options)
        try:
            yield await self._client.run_private(holding.take, name="lease")
        finally:
            if holding.is_mine:
                await self._leave(holding)

    async def _leave(self, holding: Holding) -> None:
        """Resign; on the private loop this continues even if the caller is cancelled."""
        if self._inline:
            await holding.give_back()
        else:
            await asyncio.shield(asyncio.wrap_future(self._give_back_privately(holding)))

    @contextlib.contextmanager
    def hold_sync(self, options: LeaseOptions) -> Iterator[Lease]:
        """The block of synchronous code."""
        refuse_running_loop("lease", instead="async with app.lease(…)")
        if self._inline:
            raise UsageError(
                "An inline app runs its leases on the caller's event loop.", remedy="Write: async with app.lease(…)."
            )
        holding = self._holding(options)
        try:
            yield self._client.run_sync(holding.take, name="lease")
        finally:
            if holding.is_mine:
                self._give_back_privately(holding).result()

    def _holding(self, options: LeaseOptions) -> Holding:
        holding = Holding(self, options)
        self._open.add(holding)
        return holding

    def forget(self, holding: Holding) -> None:
        """Remove a block whose lease is resigned."""
        self._open.discard(holding)

    def close(self) -> None:
        """Resign what this process still holds or waits for, before its private loop ends."""
        if not self._inline:
            given = [self._give_back_privately(holding) for holding in list(self._open) if holding.is_mine]
            for future in given:  # started all at once: one of them must not acquire what another has resigned
                future.result()

    async def _leave_loop(self) -> None:
        """The running loop ends: resign what was acquired there after `close` had begun."""
        await asyncio.gather(*(holding.give_back() for holding in list(self._open) if holding.is_here))

    def _give_back_privately(self, holding: Holding) -> Future[None]:
        return self._client.privately(holding.give_back)


class LeaseMethods:
    """The methods of an app for leases."""

    _lease_host: LeaseHost

    def lease(
        self,
        name: str,
        *,
        ttl: Duration = "10s",
        wait: bool | Duration = True,
        rotate_after: Duration | None = None,
        max_stall: Duration | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold a lease while the block is open: `async with app.lease("reports") as lease`. One process at a time.

        `wait=True` waits without a limit, `"30s"` that long, `False` not at all; then it raises `LeaseTaken`. The lease
        is announced as lost after `rotate_after`, or when no work was finished for `max_stall` (see `Lease.worked`).
        """
        return self._lease_host.hold(
            lease_options(name, ttl=ttl, wait=wait, rotate_after=rotate_after, max_stall=max_stall)
        )

    def lease_sync(
        self,
        name: str,
        *,
        ttl: Duration = "10s",
        wait: bool | Duration = True,
        rotate_after: Duration | None = None,
        max_stall: Duration | None = None,
    ) -> AbstractContextManager[Lease]:
        """`lease` for synchronous code: `with app.lease_sync("reports") as lease`."""
        return self._lease_host.hold_sync(
            lease_options(name, ttl=ttl, wait=wait, rotate_after=rotate_after, max_stall=max_stall)
        )


def _ignore(_due_at: object) -> None:
    """Signals about due jobs do not concern a lease."""
