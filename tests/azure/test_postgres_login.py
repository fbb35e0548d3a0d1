"""Azure Database for PostgreSQL: a token instead of the password, over TLS, to a verified server.

The tokens come from the real azure-identity, and the real driver logs in to a real PostgreSQL that
checks them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from reltask import App, Context
from reltask.cli import run
from reltask.errors import PermanentError, SettingsError, TransientError
from reltask.model.connection_url import safe_url
from reltask.stores.entra import POSTGRES_SCOPE, Tokens, postgres_tokens
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.postgres.url import Target, read_url
from tests.azure.conftest import Answer, Endpoint
from tests.azure.tls import SSL_REQUEST, TlsFront, tls_front
from tests.postgres_server import PostgresServer

HOST = "server.postgres.database.azure.com"
AZURE = f"postgresql://worker@{HOST}/jobs"
USER = "token_holder"
TOKEN = "secret-token-of-the-identity"


class Fixed:
    """A credential with one fixed token."""

    def get_token(self, _scope: str) -> Any:
        return SimpleNamespace(token=TOKEN)


# The URL


def test_azure_url_needs_no_more_than_auth_entra() -> None:
    """The option is reltask's own; the login is encrypted, to a server verified by the system's certificates."""
    target = read_url(f"{AZURE}?auth=entra")
    assert target == Target(AZURE, pgbouncer=False, entra=True, makes_tls=True, verified=True, hosts=(HOST,))
    assert read_url(f"{AZURE}?auth=entra&pgbouncer=true").pgbouncer


def test_credential_asks_for_tokens_without_the_option() -> None:
    """`App(url, credential=…)` means the same as `auth=entra`, under the same rules."""
    store = App(AZURE, credential=Fixed())._make_store()
    assert isinstance(store, PostgresStore)
    assert store._options.tokens is not None
    assert store._options.tokens.fetch(1.0) == TOKEN
    with pytest.raises(SettingsError, match="never sent unencrypted"):
        App(f"{AZURE}?sslmode=disable", credential=Fixed())._make_store()


def test_password_login_stays_what_it_was() -> None:
    """Without the option and without a credential, no token is fetched."""
    store = App("postgresql://worker:s3cret@localhost/jobs")._make_store()
    assert isinstance(store, PostgresStore)
    assert store._options.tokens is None
    assert read_url("postgresql://worker:s3cret@localhost/jobs").entra is False


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "server.postgres.database.azure.com"])
@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "off"])
def test_token_is_never_sent_unencrypted(host: str, mode: str) -> None:
    """A mode weaker than TLS is refused, on loopback too, and the error says what to do."""
    with pytest.raises(SettingsError, match=rf"never sent unencrypted.*sslmode={mode}\. Remove sslmode") as caught:
        read_url(f"postgresql://worker@{host}/jobs?auth=entra&sslmode={mode}")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("host", "mode", "verified"),
    [
        ("server.postgres.database.azure.com", "require", True),
        ("server.postgres.database.azure.com", "verify-ca", True),
        ("localhost,server.postgres.database.azure.com", "require", True),
        ("127.0.0.1", "verify-full", True),
        ("127.0.0.1", "require", False),
    ],
)
def test_token_leaves_this_machine_for_a_proven_server_only(host: str, mode: str, *, verified: bool) -> None:
    """`sslmode=require`, which Azure's portal writes, accepts any certificate on loopback only."""
    target = read_url(f"postgresql://worker@{host}/jobs?auth=entra&sslmode={mode}")
    assert (target.entra, target.verified) == (True, verified)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///jobs?auth=entra",
        "postgresql:///jobs?auth=entra&host=/var/run/postgresql",
        "postgresql://worker@%2Fvar%2Frun%2Fpostgresql/jobs?auth=entra",
        "postgresql://worker@server.example.com,/jobs?auth=entra",
    ],
)
def test_token_is_not_sent_over_a_socket_file(url: str) -> None:
    """There is no TLS on a socket file; and a URL without a server leads to one."""
    with pytest.raises(SettingsError, match=r"never sent unencrypted.*names no server"):
        read_url(url)


@pytest.mark.parametrize("password", ["worker:s3cret@localhost/jobs?", "worker@localhost/jobs?password=s3cret&"])
def test_password_beside_a_token_is_refused(password: str) -> None:
    """One of the two is a mistake, and it is not clear which."""
    with pytest.raises(SettingsError, match="Remove the password") as caught:
        read_url(f"postgresql://{password}auth=entra")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("auth", ["", "entar", "Entra", "s3cret"])
def test_unknown_login_is_refused(auth: str) -> None:
    """A misspelt option does not select another login. It is not quoted: it may be a secret."""
    with pytest.raises(SettingsError, match="auth=entra for Microsoft Entra ID") as caught:
        read_url(f"{AZURE}?auth={auth}")
    assert "s3cret" not in str(caught.value)


def test_user_with_a_domain_has_to_be_escaped() -> None:
    """People's roles are named like their mail addresses; the driver would take the domain for the server."""
    with pytest.raises(SettingsError, match="escape / @"):
        read_url("postgresql://ada@example.com@server.example.com/jobs?auth=entra")
    assert read_url("postgresql://ada%40example.com@server.example.com/jobs?auth=entra").entra


def test_login_is_shown() -> None:
    """The kind of login is no secret."""
    assert safe_url(f"{AZURE}?auth=entra") == f"{AZURE}?auth=entra"


def test_missing_authorities_are_named(tmp_path: Path) -> None:
    """A file that does not exist, or holds something else, is an error in the URL."""
    (tmp_path / "empty.pem").touch()
    for name in ("absent.pem", "empty.pem"):
        with pytest.raises(SettingsError, match="sslrootcert"):
            read_url(f"{AZURE}?auth=entra&sslrootcert={tmp_path / name}").tls_context()
    context = read_url(f"{AZURE}?auth=entra&sslrootcert=system").tls_context()
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


# The login


@pytest.fixture
def front(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[TlsFront]:
    with tls_front(postgres_server.port, tmp_path) as front:
        yield front


@pytest.fixture(scope="session")
def guarded_server(postgres_server: PostgresServer) -> PostgresServer:
    """The server, with a role that needs a password."""
    postgres_server.execute(f"create role {USER} login superuser")
    postgres_server.demand_password(USER)
    return postgres_server


class Place:
    """A database behind TLS, and the role that gets in with a token."""

    def __init__(self, server: PostgresServer, front: TlsFront, url: str) -> None:
        self._server = server
        self._path = url.rpartition("/")[2]
        self._front = front
        self.accept(TOKEN)

    def accept(self, token: str) -> None:
        """Accept this token from now on, and no other."""
        self._server.execute(f"alter role {USER} password '{token}'")

    def url(self, host: str = "127.0.0.1", **options: str) -> str:
        given = {"auth": "entra", "sslrootcert": str(self._front.authority), **options}
        query = "&".join(f"{name}={value}" for name, value in given.items() if value)
        return f"postgresql://{USER}@{host}:{self._front.port}/{self._path}?{query}"


@pytest.fixture
def place(guarded_server: PostgresServer, front: TlsFront, postgres_url: str) -> Place:
    return Place(guarded_server, front, postgres_url)


@asynccontextmanager
async def connected(url: str, tokens: Tokens, patience: float = 10.0) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(url, PostgresOptions(tokens=tokens, connect_timeout=patience))
    try:
        yield connection
    finally:
        await connection.close()


def _chain(error: BaseException | None) -> list[str]:
    return [] if error is None else [repr(error), *_chain(error.__cause__ or error.__context__)]


async def test_worker_without_a_password(endpoint: Endpoint, front: TlsFront, place: Place) -> None:
    """Every connection of a process logs in with a token: polls, signals, heartbeats, transactions, maintenance."""
    endpoint.only_token = TOKEN
    app = App(place.url(), settings={"maintenance.coordination": "advisory"})
    done: asyncio.Queue[str] = asyncio.Queue()

    @app.task
    async def who(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            (row,) = await tx.fetch("select current_user::text as name")
        done.put_nowait(row["name"])

    async with app.worker():
        await who.enqueue()
        assert await done.get() == USER
    await asyncio.to_thread(app.close)
    assert {asked["resource"] for asked in endpoint.asked} == {POSTGRES_SCOPE.removesuffix("/.default")}
    assert set(front.in_clear) == {SSL_REQUEST}


async def test_mode_that_a_token_makes_stronger(front: TlsFront, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token `sslmode=require` means verify-full, so that the system's certificates suffice."""
    monkeypatch.setenv("SSL_CERT_FILE", str(front.authority))
    store = App(place.url(auth="", sslmode="require", sslrootcert="system"), credential=Fixed())._make_store()
    async with store.listen(lambda _: None) as listening:
        assert listening
        await store.read_now()
    await store.close()


async def test_each_kind_of_connection(endpoint: Endpoint, place: Place) -> None:
    """The store's pool, a task's transaction, the heartbeats, a listener and an advisory lock."""
    endpoint.only_token = TOKEN
    store = App(place.url())._make_store()
    assert isinstance(store, PostgresStore)
    beats = store.dedicated(timeout=timedelta(seconds=5))
    async with store.listen(lambda _: None) as listening, store.advisory_lock("maintenance") as is_held:
        assert listening
        assert is_held is not None
        assert await is_held()
        await beats.read_now()
        async with store.transaction(timeout=timedelta(seconds=5)) as tx:
            (row,) = await tx.fetch("select count(*) as sessions from pg_stat_activity where usename = $1", USER)
    assert row["sessions"] == 4
    await beats.close()
    await store.close()
    assert len(endpoint.asked) == 1, "connections of one store share what the credential remembers"


def test_migrate_and_doctor(
    endpoint: Endpoint,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands log in as workers do, and show nothing secret of the URL. The app's code names the host."""
    endpoint.only_token = TOKEN
    (tmp_path / "own_host.py").write_text(f"from reltask import App\napp = App({place.url()!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["migrate", "own_host:app"]) == 0
    assert run(["migrate", "--check", "own_host:app"]) == 0
    run(["doctor", "own_host:app"])
    shown = capsys.readouterr().out
    assert f"as user {USER}" in shown
    assert "/authority.pem is up to date." in shown
    assert "?auth=entra&" in shown
    assert TOKEN not in shown


def test_migrate_by_the_credential_of_the_app(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An app's credential is also used for its migrations."""
    imports = f"from reltask import App\nfrom {__name__} import Fixed\n"
    (tmp_path / "own_credential.py").write_text(f"{imports}app = App({place.url(auth='')!r}, credential=Fixed())\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["migrate", "own_credential:app"]) == 0
    assert "up to date" in capsys.readouterr().out


async def test_user_assigned_identity(endpoint: Endpoint, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """AZURE_CLIENT_ID chooses one of several managed identities of a host."""
    monkeypatch.setenv("AZURE_CLIENT_ID", "my-identity")
    endpoint.only_token = TOKEN
    async with connected(place.url(), postgres_tokens()):
        assert endpoint.asked[0]["client_id"] == "my-identity"


async def test_new_connection_has_a_new_token(endpoint: Endpoint, place: Place) -> None:
    """A token that is about to expire is renewed for the next physical connection; open ones are not affected."""
    endpoint.say(Answer(life=200), Answer())
    tokens = postgres_tokens()
    place.accept(endpoint.token(1))
    async with connected(place.url(), tokens) as first:
        place.accept(endpoint.token(2))
        async with connected(place.url(), tokens) as second:
            assert await second.fetchval("select current_user") == USER
        assert await first.fetchval("select current_user") == USER


@pytest.mark.slow
async def test_endpoint_that_hangs_does_not_hurt_a_token_that_is_good(endpoint: Endpoint, place: Place) -> None:
    """Part of the connect timeout is kept for the last good token."""
    endpoint.only_token = TOKEN
    endpoint.say(Answer(life=200), Answer(hangs=True))
    tokens = postgres_tokens()
    tokens.fetch()
    async with connected(place.url(), tokens, patience=4.0) as connection:
        assert await connection.fetchval("select current_user") == USER


async def test_refused_token(endpoint: Endpoint, front: TlsFront, place: Place) -> None:
    """The server does not know the identity: the error says what to do on Azure, and shows no token."""
    endpoint.only_token = "another-secret-token"
    with pytest.raises(PermanentError, match="pgaadauth_create_principal") as caught:
        async with connected(place.url(), postgres_tokens()):
            pass
    assert "another-secret-token" not in "".join(_chain(caught.value))
    await front.left()  # the driver does not wait for the connection's end after a refusal: the loop must outlive it


async def test_no_token_to_be_had(endpoint: Endpoint, place: Place) -> None:
    """A refusal says how to get a token; an unreachable endpoint is transient."""
    endpoint.say(Answer(status=403))
    with pytest.raises(PermanentError, match=r"gave no token.*az login"):
        async with connected(place.url(), postgres_tokens()):
            pass
    with pytest.raises(TransientError, match="gave no token"):
        async with connected(place.url(), postgres_tokens(Unreachable())):
            pass


class Unreachable:
    """A credential whose service does not answer."""

    def get_token(self, _scope: str) -> Any:
        raise ConnectionError("no route")


async def test_server_without_tls_gets_nothing(front: TlsFront, place: Place) -> None:
    """It receives the request for TLS, and nothing else."""
    front.offers_tls = False
    with pytest.raises(PermanentError, match="does not offer TLS, and a token"):
        async with connected(place.url(), postgres_tokens(Fixed())):
            pass
    assert b"".join(front.in_clear) == SSL_REQUEST


@pytest.mark.parametrize(
    ("host", "options"),
    [
        ("127.0.0.1", {"sslrootcert": ""}),
        ("127.0.0.1", {"sslrootcert": "", "sslmode": "verify-ca"}),
        ("localhost", {"sslmode": "verify-ca"}),
    ],
)
async def test_server_that_has_not_proved_who_it_is(place: Place, host: str, options: dict[str, str]) -> None:
    """An unknown authority, or a certificate for another name, ends the login before the token is sent."""
    with pytest.raises(PermanentError, match="certificate of the database server cannot be verified"):
        async with connected(place.url(host, **options), postgres_tokens(Fixed())):
            pass


async def test_certificate_for_another_name_says_what_helps(place: Place) -> None:
    """A token is sent to verified servers only, so no `sslmode` would help."""
    with pytest.raises(PermanentError, match="not valid for 'localhost'") as caught:
        async with connected(place.url("localhost"), postgres_tokens(Fixed())):
            pass
    assert caught.value.remedy == "Use a host name in the URL that the certificate contains."


async def test_any_certificate_on_loopback_if_the_url_says_so(place: Place) -> None:
    """For a server on this machine: still encrypted."""
    url = place.url(sslrootcert="", sslmode="require")
    async with connected(url, postgres_tokens(Fixed())) as connection:
        assert await connection.fetchval("select current_user") == USER
