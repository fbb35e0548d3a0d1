"""Listening for notifications, and noticing when none would arrive any more.

A connection that a firewall has dropped silently looks alive: it just hears nothing. So each
listener expects to hear something every few seconds, and one listener at a time sees to that. The
sender is not elected: it is the listener that first found the silence too long, and it stays the
sender. Of several that found it at once, the one with the lowest process id on the server stays.

    sender     ●····5 s····●····5 s····●····✂                  sends "alive", which wakes no worker
    others     ○           ○           ○    ······15 to 20 s·····●····5 s····●    the first becomes the sender
                                                                 ○           ○
    dropped    ○     ✂ ··········15 to 20 s··········● no answer within 5 s: terminate, report, listen again

"alive" is sent over the listening connection itself, so its answer proves that this connection
works, and its delivery proves it to all others. Any other notification, and any answer to a
statement on that connection, proves the same. The idle cost does not grow with the number of
workers: one statement per 5 s in all. It needs neither a leader nor maintenance.

The channels bear the name of the schema: `reltask` for jobs, `reltask_leases` for leases. So two
installs in one database do not wake each other's workers.

The operating system watches the sockets as well (`watch_socket`): a peer that acknowledges nothing
for 30 s counts as gone.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from reltask.stores.postgres.driver import asyncpg
from reltask.stores.postgres.errors import connection_failed
from reltask.stores.postgres.values import from_payload, to_ids
from reltask.stores.statement import load
from reltask.stores.waking import Cancelled, Ids, LeaseWake, Lost, Wake

ALIVE = "alive"
"""The payload that wakes no worker."""
EVERY = 5.0
"""Seconds between two signs of life of the sender."""
SILENCE = (15.0, 20.0)
"""Seconds of silence, at least and at most, after which another listener sends one."""
ANSWER_WITHIN = 5.0
"""Seconds for the answer to a sign of life."""
CLOSED = "its connection was closed"
UNANSWERED = "its connection did not answer in time"
_SOCKET = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""Seconds, seconds, probes, milliseconds: where the operating system has these options."""


class Silence:
    """When a listener has to send a sign of life. Time is an argument, in seconds."""

    def __init__(self, now: float, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self._is_sender = False
        self.due_at = 0.0
        self._postpone(now)

    def heard(self, now: float, *, yields: bool) -> None:
        """A notification has arrived at all listeners. `yields`: it is another sender's, and that one stays."""
        self._is_sender = self._is_sender and not yields
        self._postpone(now)

    def answered(self, now: float) -> None:
        """The connection works. The other listeners have heard nothing of it, so a sender stays due."""
        if not self._is_sender:
            self._postpone(now)

    def sent(self, now: float) -> None:
        """This listener's sign of life was answered: it sends the next one, too."""
        self._is_sender = True
        self._postpone(now)

    def _postpone(self, now: float) -> None:
        self.due_at = now + (EVERY if self._is_sender else self._uniform(*SILENCE))


class Listener(NamedTuple):
    """A worker, or a candidate for a lease, that wants to be woken."""

    wake: Wake
    lease: LeaseWake | None
    lost: Lost | None
    cancelled: Cancelled | None
    awaited: Ids | None = None
    ended: Ids | None = None


class Listening:
    """The listeners of one store, and the connection that hears for them."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self.listeners: list[Listener] = []
        self.connection: asyncpg.Connection | None = None
        self._silence = Silence(0.0, random.uniform)
        self._lost = asyncio.Event()
        self._reason = CLOSED

    @property
    def is_missing(self) -> bool:
        """Whether a listener would hear nothing."""
        return bool(self.listeners) and (self.connection is None or self.connection.is_closed())

    async def begin(self, connection: asyncpg.Connection) -> None:
        """Make this the listening connection. Signals may have been missed before, so wake once."""
        self.connection, self._reason = connection, CLOSED
        self._lost.clear()
        try:
            await connection.add_listener(self._schema, self._notified)
            await connection.add_listener(f"{self._schema}_leases", self._lease_notified)
            await connection.add_listener(f"{self._schema}_cancel", self._cancel_notified)
            await connection.add_listener(f"{self._schema}_awaited", self._awaited_notified)
            await connection.add_listener(f"{self._schema}_ended", self._ended_notified)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            connection.terminate()
            raise connection_failed(error) from error
        connection.add_termination_listener(self._closed)
        self._silence = Silence(_now(), random.uniform)
        self._wake_all()

    def answered(self) -> None:
        """A statement was answered over the listening connection."""
        self._silence.answered(_now())

    # Signs of life

    async def too_quiet(self) -> bool:
        """Wait until a sign of life is due. False if the connection was lost before."""
        while not self._lost.is_set():
            if self._silence.due_at <= _now():
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._silence.due_at):
                    await self._lost.wait()
        return False

    async def send_alive(self, connection: asyncpg.Connection) -> bool:
        """Send a sign of life over the listening connection; False if it is not answered."""
        (statement,) = load("postgres", "signal", "numbered", self._schema)
        try:
            await connection.fetch(statement.text, ALIVE, timeout=ANSWER_WITHIN)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            self._reason = UNANSWERED
            return False
        self._silence.sent(_now())
        return True

    def postpone(self) -> None:
        """The connection is in use: the answer to that statement decides."""
        self._silence.due_at = _now() + EVERY

    # What the driver calls

    def _notified(self, connection: asyncpg.Connection, pid: int, _channel: str, payload: str) -> None:
        self._silence.heard(_now(), yields=payload == ALIVE and pid < connection.get_server_pid())
        if payload != ALIVE:
            for listener in self.listeners:
                listener.wake(from_payload(payload))

    def _lease_notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._silence.heard(_now(), yields=False)
        self._wake_lease(payload)

    def _cancel_notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._silence.heard(_now(), yields=False)
        self._report_cancelled(to_ids(payload))

    def _awaited_notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._silence.heard(_now(), yields=False)
        job_ids = to_ids(payload)
        for listener in self.listeners:
            if listener.awaited is not None:
                listener.awaited(job_ids)

    def _ended_notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._silence.heard(_now(), yields=False)
        self._report_ended(to_ids(payload))

    def _closed(self, connection: asyncpg.Connection) -> None:
        """The listening connection was lost: signals may have been missed."""
        if connection is not self.connection:
            return
        self._lost.set()
        for listener in self.listeners:
            if listener.lost is not None:
                listener.lost(self._reason)
        self._wake_all()

    def _wake_all(self) -> None:
        for listener in self.listeners:
            listener.wake(None)
        self._wake_lease(None)
        self._report_cancelled([])
        self._report_ended([])

    def _report_ended(self, job_ids: list[UUID]) -> None:
        for listener in self.listeners:
            if listener.ended is not None:
                listener.ended(job_ids)

    def _report_cancelled(self, job_ids: list[UUID]) -> None:
        for listener in self.listeners:
            if listener.cancelled is not None:
                listener.cancelled(job_ids)

    def _wake_lease(self, name: str | None) -> None:
        for listener in self.listeners:
            if listener.lease is not None:
                listener.lease(name)


def _now() -> float:
    return asyncio.get_running_loop().time()


def watch_socket(connection: asyncpg.Connection) -> None:
    """Let the operating system end a connection whose peer has gone without a word."""
    sock = connection._transport.get_extra_info("socket")  # noqa: SLF001 - the driver has no option for it
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SOCKET.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
