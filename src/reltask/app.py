"""The composition root: an `App` knows its tasks, and connects all other parts.

Nothing connects, and no settings are read, until the first call enqueues or a worker starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from reltask import events
from reltask.config import Loaded, load_settings
from reltask.errors import ConfigurationError, MissingExtra, UsageError
from reltask.leases.holding import LeaseHost, LeaseMethods
from reltask.logs import Publisher
from reltask.model.clock import Clock, SystemClock
from reltask.model.codec import Codec, Payloads, check_codec
from reltask.model.schema_name import with_schema
from reltask.model.screens import Payload
from reltask.model.settings import Settings
from reltask.model.shards import Here, read_shards
from reltask.model.surroundings import Surroundings
from reltask.model.task import Registry, check_text
from reltask.producer.client import Client, Sender
from reltask.producer.enqueue import Call, Enqueuer, Tracing
from reltask.producer.job import Access, Job
from reltask.producer.operations import Operations
from reltask.producer.pauses import Pausing
from reltask.producer.result import Results
from reltask.producer.schedules import Schedules
from reltask.producer.shown import Shown
from reltask.producer.task import Task
from reltask.service import LoopHost, ThreadHost, worker_id
from reltask.stores.choose import check_token_host, make_store
from reltask.stores.encoded import encoded
from reltask.stores.shards import sharded_store
from reltask.stores.store import Store, open_as_shard
from reltask.tasks import Declaring
from reltask.worker.base_context import Middleware
from reltask.worker.places import Room
from reltask.worker.shards import ShardedWorker
from reltask.worker.threads import ThreadPool
from reltask.worker.worker import Worker

if TYPE_CHECKING:
    from reltask.testing.kit import TestKit
    from reltask.web.access import Authorize
    from reltask.web.dashboard import Dashboard

R = TypeVar("R")
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any]]


class App(Declaring, Operations, Pausing, LeaseMethods):
    """Tasks, and the database that their jobs live in.

    `url` is `sqlite:///file.db`, `postgresql://host/database` or `mssql://server/database`; by
    default it is read from the settings. `shards` makes one system of several installs: their URLs,
    with None for one that was removed, or a number of schemas in the one database. `settings` holds
    further settings by their dotted names, such as `{"worker.concurrency": 20}`; they override
    environment and file. `credential` logs in to `mssql://` or `postgresql://` in place of
    DefaultAzureCredential. `codec` encodes what jobs carry before it is stored. `contextvars` are
    carried from enqueue to run, and `middleware` are context managers around each run. `clock`, `rng`,
    `now` and `inline` are for tests: with `inline` everything runs on the caller's loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: int | Sequence[str | None] | None = None,
        imports: Iterable[str] = (),
        lifespan: Lifespan | None = None,
        version: str | None = None,
        settings: Mapping[str, object] | None = None,
        config: str | None = None,
        credential: Any = None,
        codec: Codec | None = None,
        contextvars: Iterable[ContextVar[Any]] = (),
        middleware: Iterable[Middleware] = (),
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
        self._shards = read_shards(url, shards)
        url = self._shards.url(url)
        self._given = dict(settings or {}) | ({} if url is None else {"database.url": url})
        self._config = config
        self.credential = credential
        self.codec = codec
        self.surroundings = Surroundings(contextvars, middleware)
        self._cli: dict[str, object] = {}
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._now = now
        self._publisher = Publisher()
        self.emit = self._publisher.emit
        self._inline = inline
        self._pool: ThreadPool | None = None
        """Where `def` bodies run; None: in threads of each worker. The test kit has its own."""
        self._declares = True
        """Whether a starting worker writes the schedules of the code."""
        self._client = Client(
            lambda: self._make_store(inline=True),
            lambda timeout: self._make_store(command_timeout=timeout),
            inline=inline,
        )
        self._sender = Sender(self._client, borrow=lambda connection: self._make_store().borrow(connection))
        self._results = Results(self._client)
        access = Access(
            self._sender,
            self._results,
            lambda: self.settings.limits,
            Shown(self.registry),
            self._run_again,
            check_codec(codec),
        )
        self._enqueuer = Enqueuer(access, rng=self._rng)
        self._enqueuer.placement = self._placement = self._shards.placement(self._rng)
        self._schedules = Schedules(self._enqueuer)
        self._emit_soon = self.emit if inline else self._publisher.emit_soon
        self._lease_client = self._client if inline else Client(self._make_lease_store, thread="reltask-leases")
        self._lease_host = LeaseHost(
            self._lease_client, self._make_lease_store, self._emit_soon, self._clock, self._rng, inline=inline
        )
        self._dashboards: list[Dashboard] = []

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
        return with_schema(url, self.settings.database.schema)

    def configure(self, *, config: str | None = None, **cli: object) -> None:
        """Settings from a command line: they override all others.

        Call it before anything connects.
        """
        self._config = config or self._config
        self._cli |= {name.replace("__", "."): value for name, value in cli.items() if value is not None}
        self.__dict__.pop("loaded", None)
        self._enqueuer.limits = None

    @property
    def shard_urls(self) -> dict[int, str]:
        """The URLs of the shards by their numbers; empty for an app without shards."""
        return self._shards.urls(self.url)

    def number_shards(self) -> None:
        """Write into each shard which one it is; `reltask migrate` does so. Without shards nothing is written."""

        async def number_all() -> None:
            for number, url in self.shard_urls.items():
                store = self._make_store(url, inline=True)
                try:
                    await open_as_shard(store, number)
                finally:
                    await store.close()

        asyncio.run(number_all())

    def _make_lease_store(self) -> Store:
        """Of the first shard, if there are several: a lease exists once."""
        home = next(iter(self.shard_urls.values()), None)
        return self._make_store(home, inline=self._inline, emit=self._emit_soon)

    def _make_dashboard_store(self) -> Store:
        """Of all shards: the dashboard shows one system."""
        return self._make_store(emit=self._emit_soon)

    def _make_store(
        self,
        url: str | None = None,
        *,
        inline: bool = False,
        emit: events.Subscriber | None = None,
        command_timeout: timedelta | None = None,
    ) -> Store:
        """A store on this database; None: on the app's, with all its shards."""
        if url is None and self._placement is not None:
            urls = self.shard_urls
            one = partial(self._make_store, inline=inline, emit=emit, command_timeout=command_timeout)
            return sharded_store({number: one(urls[number]) for number in urls}, urls, self._placement)
        check_token_host(self.loaded, self.credential)
        emit, settings = emit or self.emit, self.settings.database
        store = make_store(
            url or self.url,
            msgspec.structs.replace(settings, command_timeout=command_timeout or settings.command_timeout),
            clock=self._clock,
            rng=self._rng,
            now=self._now,
            inline=inline,
            watch=not self._inline,
            on_circuit=lambda state: emit(events.CircuitChanged(worker="", state=state)),
            on_retry=lambda verb, error, delay: emit(
                events.DatabaseUnavailable(worker="", verb=verb, error=str(error), retry_in=delay)
            ),
            credential=self.credential,
        )
        return store if self.codec is None else encoded(store, Payloads(self.codec))

    # Tasks

    def import_tasks(self) -> None:
        """Import the modules that `imports=` names, which registers their tasks."""
        for module in self.imports:
            importlib.import_module(module)

    def get_task(self, name: str) -> Task[..., ..., Any, Any]:
        """The task of this name or alias, or UnknownTask with the nearest name."""
        return Task(self.registry.get(name), self._enqueuer)

    # Producing

    def _run_again(self, payload: Payload, store: Store) -> Coroutine[Any, Any, Job[Any]]:
        return self._enqueuer.again(payload, store)

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
        for dashboard in self._dashboards:
            dashboard.close()
        self._lease_host.close()
        self._lease_client.close()
        self._results.close()
        self._client.close()
        self._publisher.drain()

    def dashboard(self, *, authorize: Authorize | None = None, show_values: bool = False) -> Dashboard:
        """A web page about this app's jobs: an ASGI application to mount below any path; `.wsgi` is its WSGI form.

        `authorize(request)` answers "read", "act", a pair of that and a person's name, or None to refuse; it may be a
        coroutine function. Without it only this machine may look, and no one may act. Arguments, results and values of
        steps are masked unless `show_values` is true. Needs the extra `web`.
        """
        return self._make_dashboard(authorize, show_values=show_values)

    def _make_dashboard(
        self,
        authorize: Authorize | None,
        *,
        show_values: bool = False,
        local: Literal["read", "act"] = "read",
        reference: str = "MODULE:app",
    ) -> Dashboard:
        try:
            from reltask.web.dashboard import Dashboard  # noqa: PLC0415 - an extra, and an edge
        except ImportError as error:
            raise MissingExtra(
                "The dashboard needs starlette and jinja2.", remedy='Run: pip install "reltask[web]"'
            ) from error
        client = self._client if self._inline else Client(self._make_dashboard_store, thread="reltask-dashboard")
        dashboard = Dashboard(
            self,
            client,
            authorize=authorize,
            show_values=show_values,
            local=local,
            reference=reference,
            run_again=self._run_again,
        )
        self._dashboards.append(dashboard)
        return dashboard

    # Working

    def subscribe(self, subscriber: events.Subscriber) -> None:
        """Call `subscriber` with every event of this process, on the thread where it happens.

        Events of `app.lease(…)` come on a thread of their own, soon after: a subscriber delays no heartbeat.
        """
        self._publisher.subscribe(subscriber)

    def trace(self, tracing: Tracing, around: Middleware) -> None:
        """Follow jobs from their enqueue to their run, outside of all middleware: `instrument` of OpenTelemetry."""
        self._enqueuer.tracing = tracing
        self.surroundings.enclose(around)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """Run a worker on this loop while the block is open. Touches neither signals, logging nor the loop policy."""
        self.import_tasks()
        async with self._entered() as state:
            sharded = self._placement is not None
            worker = self._make_sharded_worker(state) if sharded else self._make_worker(state)
            await worker.start()
            lent = self._client.lend(worker.store)
            self._sender.wakes.add(worker.wake)
            self._sender.stops.add(worker.may_be_cancelled)
            worker.serve(self._results)
            try:
                yield worker
            finally:
                self._sender.wakes.discard(worker.wake)
                self._sender.stops.discard(worker.may_be_cancelled)
                self._client.take_back(lent)
                await worker.stop(unused=lent.ended)

    def immediate(self) -> AbstractContextManager[TestKit]:
        """For tests and scripts: while the block is open, each enqueue runs its job at once, and what that enqueues.

        Jobs live in a temporary database. `def` bodies run in the thread that enqueues. A job that fails does not
        raise: `job.result()` says what became of it. Jobs that are due later wait: see `TestKit.advance`.
        """
        from reltask.testing.kit import TestKit  # noqa: PLC0415 - tests only

        return TestKit(self, immediate=True)

    def run(self) -> None:
        """Run a worker in this process until SIGTERM or Ctrl+C. Sets up logging and signals, as the CLI does."""
        from reltask.cli.runner import run_worker  # noqa: PLC0415 - only a process that becomes a worker needs it

        code = run_worker(self)
        if code:
            raise SystemExit(code)

    def _make_sharded_worker(self, state: Any) -> Worker:
        assert self._placement is not None
        placement, identity = self._placement, worker_id(self.settings.worker.name, self._rng)

        def make(number: int, room: Room) -> Worker:
            here = Here(number, placement)
            return self._make_worker(state, self.shard_urls[number], here=here, room=room, identity=identity)

        store = self._make_store(inline=self._inline)
        worker = ShardedWorker(make, list(self.shard_urls), store, clock=self._clock, emit=self.emit)
        return cast("Worker", worker)  # the same methods: a caller need not know which one it has

    def _make_worker(self, state: Any, url: str | None = None, *, here: Here | None = None, **options: Any) -> Worker:
        is_home = here is None or here.number == here.placement.home
        return Worker(
            self._make_store(url, inline=self._inline),
            self.registry,
            settings=self.settings.worker,
            limits=self.settings.limits,
            history=self.settings.history,
            clock=self._clock,
            rng=self._rng,
            emit=self.emit,
            emit_soon=self._emit_soon,
            wanted=self._publisher.wanted,
            schedules=self.declarations() if is_home and self._declares else [],
            app_version=self.version,
            state=state,
            beater_host=LoopHost if self._inline else ThreadHost,
            enqueuer=self._enqueuer,
            maintenance=self.settings.maintenance.on(url or self.url),
            here=here,
            pool=self._pool,
            **options,
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
