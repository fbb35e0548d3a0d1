"""What is specific to PostgreSQL: broken connections, lost answers, signals, and clear errors for all of them."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from reltask.errors import AmbiguousError, ConflictError, PermanentError, ReltaskError, SettingsError, TransientError
from reltask.model.clock import SystemClock
from reltask.model.job import ClaimRequest, Completion, Hold, NewJob
from reltask.producer.enqueue import insert_surely
from reltask.resilience import Policy
from reltask.stores.postgres import connections
from reltask.stores.postgres.connections import PostgresOptions
from reltask.stores.postgres.schema import check, migrate_postgres
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.postgres.values import WORTH_COPYING
from tests.postgres_server import PostgresServer

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        yield store


@pytest.fixture
async def operator(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Another connection: holds locks, ends sessions, reads."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def opened(
    url: str, options: PostgresOptions | None = None, policy: Policy | None = None
) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, options=options, policy=policy)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def policy() -> Policy:
    return Policy(clock=SystemClock(), rng=random.Random(1), first=0.01)


def request(limit: int = 10) -> ClaimRequest:
    return ClaimRequest(
        worker="w",
        token=uuid4(),
        queues=["default"],
        tasks=["t"],
        limit=limit,
        lock_timeout=MINUTE,
        isolated=True,
        alive_for=MINUTE,
    )


OURS = "from pg_stat_activity where application_name = 'reltask' and datname = current_database()"
SESSIONS = f"select count(*) {OURS}"
WAITING = f"{SESSIONS} and wait_event_type = 'Lock'"
END = f"select pg_terminate_backend(pid) {OURS}"


async def until(connection: asyncpg.Connection, query: str, count: int) -> None:
    """Wait until the server shows that many sessions. The test's timeout ends the wait."""
    while await connection.fetchval(query) != count:
        await connection.execute("select pg_stat_clear_snapshot()")


# Broken connections


async def test_write_whose_connection_ends_is_ambiguous_and_read_is_transient(
    store: PostgresStore, operator: asyncpg.Connection
) -> None:
    """A write may or may not have been applied when its connection ends before the answer; a read changes nothing."""
    for verb, kind in ((store.reclaim_jobs(), AmbiguousError), (store.read_status(), TransientError)):
        transaction = operator.transaction()
        await transaction.start()
        await operator.execute("lock table reltask.jobs in access exclusive mode")
        asked = asyncio.ensure_future(verb)
        await until(operator, WAITING, 1)
        await operator.execute(END)
        with pytest.raises(ReltaskError) as caught:
            await asked
        assert type(caught.value) is kind
        await transaction.rollback()


async def test_connection_that_died_while_idle_is_replaced(store: PostgresStore, operator: asyncpg.Connection) -> None:
    """A connection that is known to be closed is not used: no error, no retry."""
    await operator.execute(END)
    async with asyncio.timeout(30):
        # until the loop has read that the other side has closed
        while not all(connection.is_closed() for connection in store._connections._idle):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await store.read_status()).due == 0


@pytest.mark.slow
async def test_store_survives_a_restart_of_the_server(postgres_server: PostgresServer, store: PostgresStore) -> None:
    """Once the server is known to be away errors are transient; afterwards the same store works."""
    job = NewJob(id=uuid4(), task="t")
    await store.enqueue_jobs([job])
    postgres_server.stop("immediate")
    try:
        with pytest.raises((TransientError, AmbiguousError)):
            await store.claim_jobs(request())
        for _ in range(3):
            with pytest.raises(TransientError):
                await store.claim_jobs(request())
    finally:
        postgres_server.start()
    assert [claim.job_id for claim in (await store.claim_jobs(request())).claims] == [job.id]


@pytest.mark.slow
async def test_server_times_out_before_the_client(
    postgres_url: str, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that takes too long is ended by the server, so that it was certainly not applied."""
    options = PostgresOptions(command_timeout=10.0)
    assert connections._session(options)["statement_timeout"] == "8000"
    monkeypatch.setattr(connections, "SERVER_SHARE", 0.05)  # so short that no pause makes the client the first
    async with opened(postgres_url, options) as store, operator.transaction():
        await operator.execute("lock table reltask.jobs in access exclusive mode")
        with pytest.raises(TransientError, match="57014"):
            await store.reclaim_jobs()


@pytest.mark.parametrize("refused", [False, True])
async def test_connection_in_use_closes_after_its_store_was_closed(
    postgres_url: str, operator: asyncpg.Connection, refused: bool
) -> None:
    """A running statement finishes, and its connection closes with it, whatever the answer."""
    store = PostgresStore(postgres_url)
    await store.open()
    transaction = operator.transaction()
    await transaction.start()
    await operator.execute("lock table reltask.jobs in access exclusive mode")
    asked = asyncio.create_task(store.enqueue_jobs([NewJob(id=uuid4(), task="t", priority=10 if refused else 5)]))
    await until(operator, WAITING, 1)
    await store.close()
    await transaction.rollback()
    with pytest.raises(ConflictError) if refused else nullcontext():
        await asked
    assert store._connections._idle == []
    await until(operator, SESSIONS, 0)


async def test_cancelled_statement_costs_one_connection_and_no_place(
    postgres_url: str, operator: asyncpg.Connection
) -> None:
    """Cancelling a running call leaves the store usable, even with room for one connection only."""
    async with opened(postgres_url, PostgresOptions(pool_size=1)) as store:
        async with operator.transaction():
            await operator.execute("lock table reltask.jobs in access exclusive mode")
            asked = asyncio.ensure_future(store.reclaim_jobs())
            await until(operator, WAITING, 1)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert await store.reclaim_jobs() == []


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_stricter_default_isolation_changes_nothing(
    postgres_server: PostgresServer, postgres_url: str, operator: asyncpg.Connection, level: str
) -> None:
    """A statement that has waited for a row continues with its current state, whatever the database's default."""
    name = await operator.fetchval("select current_database()")
    postgres_server.execute(f"alter database {name} set default_transaction_isolation = '{level}'")
    async with opened(postgres_url) as store:
        await store.enqueue_jobs([NewJob(id=uuid4(), task="t")])
        (claim,) = (await store.claim_jobs(request())).claims
        async with operator.transaction():
            await operator.execute("update reltask.jobs set heartbeat_at = clock_timestamp()")
            completing = asyncio.ensure_future(store.complete_jobs("w", [Completion(hold=claim.hold)]))
            await until(operator, WAITING, 1)
        assert [settled.hold for settled in await completing] == [claim.hold]


class Cutter:
    """A TCP proxy that can drop the server's next answer and close the connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.cut = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        forward = asyncio.ensure_future(_copy(reader, server_writer))
        while data := await server_reader.read(65536):
            if self.cut:
                self.cut = False
                break
            writer.write(data)
        writer.close()
        forward.cancel()
        with suppress(asyncio.CancelledError):
            await forward
        server_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


async def test_enqueue_is_sent_again_and_still_says_what_it_inserted(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """An insert whose answer was lost is repeated with the same ids: one row, reported as inserted."""
    cutter = Cutter(postgres_server.port)
    async with cutter.running() as port:
        url = postgres_url.replace(str(postgres_server.port), str(port))
        async with opened(url, policy=policy()) as store:
            await store.enqueue_jobs([NewJob(id=uuid4(), task="t")])  # from here on the statement is prepared
            job = NewJob(id=uuid4(), task="t")
            cutter.cut = True
            assert await insert_surely([job], store) == {job.id}
            assert len(await store.list_jobs()) == 2


async def test_claim_and_completion_are_not_sent_again_after_a_lost_answer(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A claim sent twice would take other jobs, a completion sent twice would look refused: both are ambiguous."""
    cutter = Cutter(postgres_server.port)
    async with cutter.running() as port:
        url = postgres_url.replace(str(postgres_server.port), str(port))
        async with opened(url, policy=policy()) as store:
            await store.enqueue_jobs([NewJob(id=uuid4(), task="t") for _ in range(3)])
            (first,) = (await store.claim_jobs(request(limit=1))).claims
            cutter.cut = True
            with pytest.raises(AmbiguousError):
                await store.claim_jobs(request(limit=1))
            assert (await store.read_status()).running == 2
            await store.complete_jobs("w", [Completion(hold=Hold(uuid4(), 1))])
            cutter.cut = True
            with pytest.raises(AmbiguousError):
                await store.complete_jobs("w", [Completion(hold=first.hold)])
            assert first.hold in await store.read_outcomes([first.hold])


# Few connections, and signals


async def test_idle_worker_needs_one_connection(store: PostgresStore, operator: asyncpg.Connection) -> None:
    """Polls, heartbeats and LISTEN share one connection while nothing runs at the same time."""
    async with store.listen(lambda _: None):
        for _ in range(3):
            await store.claim_jobs(request())
            await store.read_status()
        assert await operator.fetchval(SESSIONS) == 1


async def test_signal_wakes_and_a_broken_listener_listens_again(
    store: PostgresStore, operator: asyncpg.Connection
) -> None:
    """Losing the listening connection wakes the worker once; its next statement listens again."""
    woken = asyncio.Event()

    async def is_woken() -> None:
        await woken.wait()
        woken.clear()

    async with store.listen(lambda _: woken.set()) as listening:
        assert listening
        woken.clear()
        await operator.execute("select pg_notify('reltask', '')")
        await is_woken()
        await operator.execute(END)
        await is_woken()
        await store.read_status()
        await is_woken()
        await store.signal()
        await is_woken()


@pytest.mark.parametrize("verb", ["signal", "read_status"], ids=["while a signal is planned", "while closing"])
async def test_cancelled_close_leaves_no_connection(postgres_url: str, operator: asyncpg.Connection, verb: str) -> None:
    """Cancelling a store's close still closes its connections."""
    store = PostgresStore(postgres_url)
    await store.open()
    async with store.transaction(timeout=MINUTE):
        await asyncio.gather(*(getattr(store, verb)() for _ in range(3)))
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [*store._connections._idle, *store._tasks_connections._idle] == []
    await store.close()  # a running signal may use a separate connection
    await until(operator, SESSIONS, 0)


async def test_pgbouncer_gets_no_session_state(postgres_url: str, operator: asyncpg.Connection) -> None:
    """Behind a transaction pooler no state may live in the session."""
    async with opened(f"{postgres_url}?pgbouncer=true") as store:
        await store.enqueue_jobs([NewJob(id=uuid4(), task="t") for _ in range(WORTH_COPYING)])
        assert (await store.claim_jobs(request())).claims
        assert await operator.fetchval(SESSIONS) == 0
        async with store.listen(lambda _: None) as listening:
            assert not listening


# Clear errors


async def test_server_named_by_the_environment_gets_no_password_in_clear_text(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off this machine, a server without TLS is refused before anything is sent to it."""
    monkeypatch.setenv("PGHOST", "0.0.0.0")  # it leads here, but does not look local
    monkeypatch.setenv("PGPORT", str(postgres_server.port))
    with pytest.raises(PermanentError, match="does not offer TLS"):
        async with opened("postgresql://postgres@/postgres"):
            pass


async def test_server_without_tls_is_a_clear_error(postgres_url: str) -> None:
    """If TLS is required and not offered, the message says what to change."""
    with pytest.raises(PermanentError, match="does not offer TLS"):
        async with opened(f"{postgres_url}?sslmode=require"):
            pass


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("sslmode=bogus", "sslmode is not one of disable, allow, prefer, require, verify-ca, verify-full"),
        ("sslmode=verify-full", r"{home}/.postgresql/root.crt: No such file .* sslrootcert="),
        ("sslmode=verify-ca&sslrootcert={home}/nope.pem", r"sslrootcert .* {home}/nope.pem: No such file"),
        ("sslmode=require&sslrootcert={home}/empty.pem", r"sslrootcert .* {home}/empty.pem: .*PEM"),
        ("sslmode=require&sslcrl={home}/nope.crl", r"sslcrl .* {home}/nope.crl: No such file"),
        ("sslcert={home}/nope.crt", r"sslcert .* {home}/nope.crt: No such file"),
        ("sslmode=allow&sslcert={home}/empty.pem&sslkey={home}/nope.key", r"sslkey .* {home}/nope.key: No such file"),
        ("sslcert={home}/empty.pem&sslkey={home}/empty.pem", r"sslcert .* {home}/empty.pem: .*PEM"),
    ],
)
async def test_tls_option_that_cannot_be_used_is_named(home: Path, options: str, reason: str) -> None:
    """Nothing was sent and a retry would not help: a setting is wrong, and the message says which and why."""
    (home / "empty.pem").touch()
    with pytest.raises(SettingsError, match=reason.format(home=home)) as caught:
        async with opened(f"postgresql://me@127.0.0.1:1/d?{options.format(home=home)}"):
            pass
    assert caught.value.remedy


async def test_tls_option_of_the_environment_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads PostgreSQL's variables if the URL is silent, so they can be wrong too."""
    monkeypatch.setenv("PGSSLMODE", "bogus")
    with pytest.raises(SettingsError, match="PGSSLMODE"):
        async with opened("postgresql://me@127.0.0.1:1/d"):
            pass
    monkeypatch.setenv("PGSSLMODE", "verify-ca")
    monkeypatch.setenv("PGSSLROOTCERT", str(home / "nope.pem"))
    with pytest.raises(SettingsError, match=r"nope\.pem.*PGSSLROOTCERT"):
        async with opened("postgresql://me@127.0.0.1:1/d"):
            pass


@pytest.mark.parametrize("options", ["sslmode=disable&sslcert=/nope", "sslmode=prefer&sslrootcert=/nope", "host=/nope"])
@pytest.mark.usefixtures("home")
async def test_server_that_is_away_is_not_blamed_on_files(options: str) -> None:
    """A file that this sslmode does not need is not the cause; nor is a socket file that does not exist yet."""
    with pytest.raises(TransientError):
        async with opened(f"postgresql://{'' if 'host' in options else '127.0.0.1:1'}/d?{options}"):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/d",
        "postgresql://me:s3cret@word@127.0.0.1:x/d",
        "postgresql://me:s3cret@[127.0.0.1/d",
        "postgresql://me:s3cret@127.0.0.1:99999/d",
        "postgresql://me:s3cret@127.0.0.1:1/d?sslmode=bogus",
        "postgresql://me:s3cret@127.0.0.1:1/d?sslmode=verify-ca&sslrootcert=/nope",
        "postgresql://127.0.0.1:1/d?sslmode=verify-ca&sslrootcert=/nope?password=s3cret",
        "postgresql://127.0.0.1:1/d?sslmode=s3cret",
    ],
)
async def test_no_error_shows_the_password(url: str) -> None:
    """An unreachable or malformed address is reported without its secret, in the whole chain of causes."""
    with pytest.raises((TransientError, PermanentError, SettingsError)) as caught:
        async with opened(url):
            pass
    assert "s3cret" not in "".join(map(str, _chain(caught.value)))


async def test_no_error_shows_an_argument(store: PostgresStore) -> None:
    """PostgreSQL and the driver quote a value that they refuse; reltask's error and its cause do not."""
    for job in (NewJob(id=uuid4(), task="t", args="{s3cret"), NewJob(id=uuid4(), task="t", priority="s3cret")):  # type: ignore[arg-type] # what the test is about
        with pytest.raises(PermanentError) as caught:
            await store.enqueue_jobs([job])
        assert "s3cret" not in "".join(map(str, _chain(caught.value)))


def _chain(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [error, *_chain(error.__cause__)]


async def test_missing_database_and_user_say_so(postgres_server: PostgresServer) -> None:
    """A wrong name in the URL is named, with what to do."""
    with pytest.raises(PermanentError, match="Create the database"):
        async with opened(postgres_server.url("nowhere")):
            pass
    with pytest.raises(PermanentError, match="Check the user"):
        async with opened(postgres_server.url().replace("postgres@", "nobody_here@")):
            pass


async def test_read_only_database_is_refused_at_start(
    postgres_server: PostgresServer, postgres_url: str, operator: asyncpg.Connection
) -> None:
    """A database that accepts no writes is refused at the start; so is a replica."""
    name = await operator.fetchval("select current_database()")
    postgres_server.execute(f"alter database {name} set default_transaction_read_only = on")
    with pytest.raises(PermanentError, match="read-only"):
        async with opened(postgres_url):
            pass
    with pytest.raises(PermanentError, match="replica"):
        check({"schema_version": 1, "in_recovery": True, "read_only": True})


async def test_failover_without_a_writable_server_is_transient(
    postgres_server: PostgresServer, postgres_url: str, operator: asyncpg.Connection
) -> None:
    """If `target_session_attrs` finds no server, nothing was sent: the error is transient, and reltask's own."""
    name = await operator.fetchval("select current_database()")
    postgres_server.execute(f"alter database {name} set default_transaction_read_only = on")
    url = f"{postgres_url}?target_session_attrs=read-write"
    store = PostgresStore(url)

    job = NewJob(id=uuid4(), task="t")
    with pytest.raises(TransientError, match="accepts writes"):
        await store.enqueue_jobs([job])
    with pytest.raises(TransientError, match="accepts writes"):
        await migrate_postgres(url)
    with pytest.raises(TransientError, match="accepts writes"):
        async with store.transaction(timeout=MINUTE):
            pass
    async with store.listen(lambda _: None) as listening:
        assert listening
        await operator.execute(f"alter database {name} reset default_transaction_read_only")
        assert await store.enqueue_jobs([job]) == {job.id}
    await store.close()


def test_missing_driver_names_the_extra() -> None:
    """Without asyncpg the error says what to install."""
    code = "import sys; sys.modules['asyncpg'] = None; import reltask.stores.postgres.store"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "reltask[postgres]"' in done.stderr


async def test_dedicated_store_has_one_connection_and_its_own_timeout(
    postgres_url: str, operator: asyncpg.Connection
) -> None:
    """A heartbeat's store gives up within its timeout, without a retry, and does not use the worker's connections."""
    async with opened(postgres_url, policy=policy()) as store:
        dedicated = store.dedicated(timeout=timedelta(seconds=1))  # it also has to connect in that time
        await dedicated.open()
        try:
            assert await operator.fetchval(SESSIONS) == 2
            async with operator.transaction():
                await operator.execute("lock table reltask.jobs in access exclusive mode")
                # whichever is first: the server's limit (certainly not applied), or the client's
                # timeout
                with pytest.raises((TransientError, AmbiguousError)):
                    await dedicated.heartbeat_jobs("w", [], alive_for=MINUTE)
        finally:
            await dedicated.close()
