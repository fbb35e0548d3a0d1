"""The composition root: an `App` knows its tasks, and connects all other parts.

Nothing connects, and no settings are read, until the first call enqueues or a worker starts.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from reltask import events
from reltask.config import Loaded, load_settings
from reltask.errors import ConfigurationError, UsageError
from reltask.leases.holding import LeaseHost, LeaseMethods
from reltask.logs import is_logged, log_event
from reltask.model.clock import Clock, SystemClock
from reltask.model.settings import Settings
from reltask.model.task import Registry, check_text
from reltask.producer.client import Client
from reltask.producer.enqueue import Call, Enqueuer
from reltask.producer.job import Access, Job
from reltask.producer.operations import Operations
from reltask.producer.result import Results
from reltask.producer.schedules import Schedules
from reltask.producer.sending import Sender
from reltask.producer.task import Task
from reltask.service import LoopHost, ThreadHost
from reltask.stores.choose import check_token_host, make_store
from reltask.stores.store import Store
from reltask.tasks import Declaring
from reltask.worker.worker import Worker

R = TypeVar("R")
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]


class App(Declaring, Operations, LeaseMethods):
    """Tasks, and the database that their jobs live in.

    `url` is `sqlite:///file.db`, `postgresql://host/database` or `mssql://server/database`; by
    default it is read from the settings. `settings` holds further settings by their dotted names,
    such as `{"worker.concurrency": 20}`; they override environment and file. `credential` logs in
    to `mssql://` or `postgresql://` in place of DefaultAzureCredential. `clock`, `rng`, `now` and
    `inline` are for tests: with `inline` everything runs on the caller's loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        imports: Iterable[str] = (),
        lifespan: Lifespan | None = None,
        version: str | None = None,
        settings: Mapping[str, object] | None = None,
        config: str | None = None,
        credential: Any = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        now: Callable[[], datetime] | None = None,
        inline: bool = False,
    ) -> None:
        check_text("version", version, ConfigurationError)
        self.registry = Registry()
        self.version = version
        self.imports = tuple(imports)
        self.lifespan = lifespan
        self._given = dict(settings or {}) | ({} if url is None else {"database.url": url})
        self._config = config
        self.credential = credential
        self._cli: dict[str, object] = {}
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._now = now
        self._publisher = events.Publisher(log_event, is_logged)
        self.emit = self._publisher.emit
        self._inline = inline
        self._client = Client(
            lambda: self._make_store(inline=True),
            lambda timeout: self._make_store(command_timeout=timeout),
            inline=inline,
        )
        self._sender = Sender(self._client, borrow=lambda connection: self._make_store().borrow(connection))
        self._results = Results(self._client)
        access = Access(self._sender, self._results, lambda: self.settings.limits.arguments)
        self._enqueuer = Enqueuer(access, rng=self._rng)
        self._schedules = Schedules(self._enqueuer)
        self._emit_soon = self.emit if inline else self._publisher.emit_soon
        self._lease_client = self._client if inline else Client(self._make_lease_store, thread="reltask-leases")
        self._lease_host = LeaseHost(
            self._lease_client, self._make_lease_store, self._emit_soon, self._clock, self._rng, inline=inline
        )

    # Settings

    @cached_property
    def loaded(self) -> Loaded:
        """The settings, and where each came from."""
        return load_settings(file=self._config, arguments=self._given, cli=self._cli)

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def url(self) -> str:
        """The database's URL. It may hold a password: log `config.safe_url` of it instead."""
        url = self.settings.database.url
        if url is None:
            raise ConfigurationError(
                "No database is configured.",
                remedy='Write App("sqlite:///reltask.db"), or set RELTASK_DATABASE_URL, or database.url in a file.',
            )
        return url

    def configure(self, *, config: str | None = None, **cli: object) -> None:
        """Settings from a command line: they override all others.

        Call it before anything connects.
        """
        self._config = config or self._config
        self._cli |= {name.replace("__", "."): value for name, value in cli.items() if value is not None}
        self.__dict__.pop("loaded", None)
        self._enqueuer.arguments_limit = None

    def _make_lease_store(self) -> Store:
        return self._make_store(inline=self._inline, emit=self._emit_soon)

    def _make_store(
        self,
        *,
        inline: bool = False,
        emit: events.Subscriber | None = None,
        command_timeout: timedelta | None = None,
    ) -> Store:
        check_token_host(self.loaded, self.credential)
        emit, settings = emit or self.emit, self.settings.database
        return make_store(
            self.url,
            msgspec.structs.replace(settings, command_timeout=command_timeout or settings.command_timeout),
            clock=self._clock,
            rng=self._rng,
            now=self._now,
            inline=inline,
            on_circuit=lambda state: emit(events.CircuitChanged(worker="", state=state)),
            on_retry=lambda verb, error, delay: emit(
                events.DatabaseUnavailable(worker="", verb=verb, error=str(error), retry_in=delay)
            ),
            credential=self.credential,
        )

    # Tasks

    def import_tasks(self) -> None:
        """Import the modules that `imports=` names, which registers their tasks."""
        for module in self.imports:
            importlib.import_module(module)

    def get_task(self, name: str) -> Task[..., ..., Any, Any]:
        """The task of this name or alias, or UnknownTask with the nearest name."""
        return Task(self.registry.get(name), self._enqueuer)

    # Producing

    def enqueue_many(self, calls: Iterable[Call[R]], *, connection: Any = None) -> Coroutine[Any, Any, list[Job[R]]]:
        """Enqueue many at once: `await app.enqueue_many(task.call(i) for i in range(1000))`.

        More than a thousand go in batches, each committed by itself. After a failure no further
        batch is begun; if other jobs are inserted by then, or may be, the error is AmbiguousError,
        and says how many certainly are. With `connection` all of them are inserted in your own open
        transaction, or none: see `Task.using`.
        """
        return self._enqueuer.enqueue(_listed(calls), connection, name="enqueue_many")

    def enqueue_many_sync(self, calls: Iterable[Call[R]], *, connection: Any = None) -> list[Job[R]]:
        """`enqueue_many` for synchronous code."""
        return self._enqueuer.enqueue_sync(_listed(calls), connection, name="enqueue_many")

    @contextlib.asynccontextmanager
    async def producer(self) -> AsyncIterator[None]:
        """Keep connections on this loop while the block is open: for web servers and the like.

        Calls work without it, too, through a thread of reltask's own; from a busy loop that is
        slower.
        """
        store = self._make_store(inline=self._inline)
        try:
            await store.open()
            lent = self._client.lend(store)
            try:
                yield
            finally:
                self._client.take_back(lent)
                await lent.ended()
        finally:
            await store.close()

    def close(self) -> None:
        """Give back this process's leases, and close its client connections; the next call opens them again."""
        self._lease_host.close()
        self._lease_client.close()
        self._results.close()
        self._client.close()
        self._publisher.drain()

    # Working

    def subscribe(self, subscriber: events.Subscriber) -> None:
        """Call `subscriber` with every event of this process, on the thread where it happens.

        Events of `app.lease(…)` come on a thread of their own, soon after: a subscriber delays no heartbeat.
        """
        self._publisher.subscribe(subscriber)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """Run a worker on this loop while the block is open. Touches neither signals, logging nor the loop policy."""
        self.import_tasks()
        async with self._entered() as state:
            worker = self._make_worker(state)
            await worker.start()
            lent = self._client.lend(worker.store)
            self._sender.wakes.add(worker.wake)
            try:
                yield worker
            finally:
                self._sender.wakes.discard(worker.wake)
                self._client.take_back(lent)
                await worker.stop(unused=lent.ended)

    def run(self) -> None:
        """Run a worker in this process until SIGTERM or Ctrl+C. Sets up logging and signals, as the CLI does."""
        from reltask.cli.runner import run_worker  # noqa: PLC0415 - only a process that becomes a worker needs it

        code = run_worker(self)
        if code:
            raise SystemExit(code)

    def _make_worker(self, state: Any) -> Worker:
        return Worker(
            self._make_store(inline=self._inline),
            self.registry,
            settings=self.settings.worker,
            limits=self.settings.limits,
            clock=self._clock,
            rng=self._rng,
            emit=self.emit,
            emit_soon=self._emit_soon,
            wanted=self._publisher.wanted,
            schedules=self.declarations(),
            app_version=self.version,
            state=state,
            beater_host=LoopHost if self._inline else ThreadHost,
            enqueuer=self._enqueuer,
            maintenance=self.settings.maintenance.on(self.url),
        )

    @contextlib.asynccontextmanager
    async def _entered(self) -> AsyncIterator[Any]:
        if self.lifespan is None:
            yield None
        else:
            async with self.lifespan(self) as state:
                yield state


def _listed(calls: Iterable[Call[R]]) -> list[Call[R]]:
    listed = list(calls)
    for call in listed:
        if not isinstance(call, Call):
            raise UsageError(
                f"enqueue_many takes calls, not {type(call).__name__}.",
                remedy="Write app.enqueue_many([task.call(…), …]).",
            )
    return listed
