"""PostgreSQL's TLS options at a real PostgreSQL behind TLS: the same as in psql, and never clear text.

The server is reached as 127.0.0.1, which its certificate names; or as 0.0.0.0, which leads here but
does not look local.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from reltask.errors import AccessRefused, SettingsError, TransientError
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.url import read_url
from tests.azure.tls import SSL_REQUEST, TlsFront, server_context, tls_front
from tests.postgres_server import PostgresServer

ELSEWHERE = "0.0.0.0"
UNPRIVILEGED = 65534


@pytest.fixture
def front(postgres_server: PostgresServer, home: Path) -> Iterator[TlsFront]:
    with tls_front(postgres_server.port, home) as front:
        yield front


@pytest.fixture
def usual(home: Path) -> Path:
    """The folder in which PostgreSQL's clients look for default files."""
    (home / ".postgresql").mkdir()
    return home / ".postgresql"


def at(front: TlsFront, host: str, options: str = "") -> str:
    files = {"authority": front.authority, "certificate": front.certificate, "key": front.key}
    return f"postgresql://postgres@{host}:{front.port}/postgres?{options.format(**files)}"


async def attempt(url: str) -> None:
    await (await connect(url, PostgresOptions())).close()


# Off this machine, without an sslmode


async def test_certificate_named_in_the_url_is_shown(front: TlsFront) -> None:
    """Off this machine `sslcert` and `sslkey` mean the same as elsewhere."""
    await attempt(at(front, ELSEWHERE, "sslmode=require&sslcert={certificate}&sslkey={key}"))
    await attempt(at(front, ELSEWHERE, "sslmode=require"))
    assert front.shown == ["server", None]


async def test_certificate_named_by_the_environment_is_shown(front: TlsFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """PGSSLCERT and PGSSLKEY count if the URL is silent."""
    monkeypatch.setenv("PGSSLCERT", str(front.certificate))
    monkeypatch.setenv("PGSSLKEY", str(front.key))
    await attempt(at(front, ELSEWHERE, "sslmode=require"))
    assert front.shown == ["server"]


async def test_certificate_in_its_usual_place_is_shown(front: TlsFront, usual: Path) -> None:
    """If none is named, those in ~/.postgresql count."""
    front.certificate.rename(usual / "postgresql.crt")
    front.key.rename(usual / "postgresql.key")
    await attempt(at(front, ELSEWHERE, "sslmode=require"))
    assert front.shown == ["server"]


async def test_authorities_in_their_usual_place_count(front: TlsFront, usual: Path) -> None:
    """With a root.crt it replaces the system's; and `sslmode=require` checks by it, as in psql, or accepts any."""
    root = usual / "root.crt"
    root.write_bytes(front.authority.read_bytes())
    await attempt(at(front, ELSEWHERE, "sslmode=require"))
    with pytest.raises(AccessRefused, match=r"not valid for '0\.0\.0\.0'"):
        await attempt(at(front, ELSEWHERE))
    server_context(usual, root)  # another authority
    for options in ("sslmode=require", ""):
        with pytest.raises(AccessRefused, match=r"cannot be verified: (certificate|self|unable)"):
            await attempt(at(front, ELSEWHERE, options))
    root.unlink()
    await attempt(at(front, ELSEWHERE, "sslmode=require"))


async def test_named_authority_is_checked(front: TlsFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `sslrootcert`, certificate and name are checked, also without `sslmode`."""
    with pytest.raises(AccessRefused, match=r"not valid for '0\.0\.0\.0'"):
        await attempt(at(front, ELSEWHERE, "sslrootcert={authority}"))
    monkeypatch.setenv("PGSSLROOTCERT", str(front.authority))
    with pytest.raises(AccessRefused, match=r"not valid for '0\.0\.0\.0'"):
        await attempt(at(front, ELSEWHERE))
    await attempt(at(front, ELSEWHERE, "sslmode=require"))


@pytest.mark.parametrize("host", [ELSEWHERE, "localhost"])
async def test_certificate_for_another_name_says_what_helps(front: TlsFront, host: str) -> None:
    """The authority is right: the right host name helps, or a mode that does not check it."""
    with pytest.raises(AccessRefused, match=r"not valid for '[\w.]+'\. Use a host name .* sslmode=verify-ca") as caught:
        await attempt(at(front, host, "sslmode=verify-full&sslrootcert={authority}"))
    assert "Install" not in caught.value.remedy
    await attempt(at(front, host, "sslmode=verify-ca&sslrootcert={authority}"))


@pytest.mark.parametrize("option", ["sslrootcert", "sslcert"])
async def test_file_that_is_not_there_is_named(front: TlsFront, option: str) -> None:
    """Nothing is sent to a server that could not be checked, or without the client certificate that was named."""
    with pytest.raises(SettingsError, match=rf"{option} .*/nope\.pem: No such file"):
        await attempt(at(front, ELSEWHERE, f"{option}=/nope.pem"))
    assert front.in_clear == []


@pytest.mark.parametrize(
    "options",
    [
        "",
        "sslcert={certificate}&sslkey={key}",
        "sslrootcert={authority}",
        "sslrootcert=system",
        "sslmode=verify-full&sslrootcert=system",
    ],
)
async def test_there_is_no_way_back_to_clear_text(front: TlsFront, options: str) -> None:
    """A server without TLS gets the request for TLS and nothing else, whatever the options."""
    front.offers_tls = False
    with pytest.raises(AccessRefused, match="does not offer TLS"):
        await attempt(at(front, ELSEWHERE, options))
    assert b"".join(front.in_clear) == SSL_REQUEST


# The system's authorities


@pytest.fixture
def trusted(front: TlsFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system trusts the server's authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(front.authority))


SYSTEM = ["sslrootcert=system", "sslmode=verify-full&sslrootcert=system"]


@pytest.mark.parametrize("options", SYSTEM)
@pytest.mark.usefixtures("trusted")
async def test_system_authorities_verify_a_server(front: TlsFront, options: str) -> None:
    """`sslrootcert=system` means `sslmode=verify-full`, on this machine too: certificate and name are checked."""
    await attempt(at(front, "127.0.0.1", options))
    assert set(front.in_clear) == {SSL_REQUEST}
    with pytest.raises(AccessRefused, match=r"not valid for '0\.0\.0\.0'"):
        await attempt(at(front, ELSEWHERE, options))


@pytest.mark.parametrize("host", ["127.0.0.1", ELSEWHERE])
@pytest.mark.parametrize("options", SYSTEM)
async def test_system_does_not_know_a_server(front: TlsFront, host: str, options: str) -> None:
    """The server's own authority is not one of the system's."""
    with pytest.raises(AccessRefused, match="cannot be verified"):
        await attempt(at(front, host, options))


@pytest.mark.parametrize("mode", [{}, {"PGSSLMODE": "verify-full"}, {"PGSSLMODE": "require"}])
@pytest.mark.usefixtures("trusted")
async def test_environment_names_the_system(
    front: TlsFront, monkeypatch: pytest.MonkeyPatch, mode: dict[str, str]
) -> None:
    """PGSSLROOTCERT counts if the URL is silent, and PGSSLMODE does not weaken it."""
    for name, value in {"PGSSLROOTCERT": "system", **mode}.items():
        monkeypatch.setenv(name, value)
    await attempt(at(front, "127.0.0.1"))
    with pytest.raises(AccessRefused, match="not valid for"):
        await attempt(at(front, ELSEWHERE))


@pytest.mark.parametrize("options", ["", "sslmode=disable", "sslmode=prefer"])
async def test_environment_makes_no_tls_where_there_is_none(
    front: TlsFront, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """On this machine TLS is optional, whatever authorities a variable names for other servers."""
    monkeypatch.setenv("PGSSLROOTCERT", "system")
    url = at(front, "127.0.0.1", options).replace(f":{front.port}/", f":{postgres_server.port}/")
    await attempt(url)


@pytest.mark.usefixtures("trusted")
async def test_revocations_of_other_authorities_do_not_count(front: TlsFront, usual: Path) -> None:
    """The list in ~/.postgresql belongs to the authorities there, not to the system's, as in psql."""
    (usual / "root.crl").write_text("not a list")
    await attempt(at(front, "127.0.0.1", "sslrootcert=system"))


@pytest.mark.parametrize("least", ["TLSv1.3", "TLSv1.2"])
@pytest.mark.parametrize("where", ["the URL", "the environment"])
@pytest.mark.usefixtures("trusted")
async def test_minimum_version_of_tls(front: TlsFront, monkeypatch: pytest.MonkeyPatch, where: str, least: str) -> None:
    """An SSL context of reltask is not weaker than the driver's: an older version than requested is refused."""
    front.context.maximum_version = ssl.TLSVersion.TLSv1_2
    option = f"&ssl_min_protocol_version={least}" if where == "the URL" else ""
    if not option:
        monkeypatch.setenv("PGSSLMINPROTOCOLVERSION", least)
    attempted = attempt(at(front, "127.0.0.1", f"sslrootcert=system{option}"))
    if least == "TLSv1.2":
        await attempted
    else:
        with pytest.raises(TransientError, match="cannot be reached"):
            await attempted


async def test_unknown_version_of_tls(front: TlsFront) -> None:
    """It is refused with a clear error before anything is sent."""
    with pytest.raises(SettingsError, match="ssl_max_protocol_version is not a TLS version"):
        await attempt(at(front, "127.0.0.1", "sslrootcert=system&ssl_max_protocol_version=TLSv9"))


# An unreadable home


@pytest.fixture
def closed_home(front: TlsFront, home: Path) -> Iterator[TlsFront]:
    """As with systemd's ProtectHome=. Root could read any home, so the test changes its user."""
    mode, user = home.stat().st_mode, os.geteuid()
    home.chmod(0)
    if user == 0:
        os.seteuid(UNPRIVILEGED)
    yield front
    os.seteuid(user)
    home.chmod(mode)


async def test_unreadable_home_is_no_obstacle(closed_home: TlsFront) -> None:
    """No file there was asked for: the system's authorities count. A file that is needed is named by its path."""
    for options in ("", "sslmode=verify-full"):
        with pytest.raises(AccessRefused, match="cannot be verified"):
            await attempt(at(closed_home, ELSEWHERE, options))
    assert set(closed_home.in_clear) == {SSL_REQUEST}
    with pytest.raises(SettingsError, match=r"root\.crt: Permission denied") as caught:
        await attempt(at(closed_home, ELSEWHERE, "sslmode=verify-ca"))
    assert caught.value.remedy == "Set HOME to a directory that this process may read."


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca", "bogus"])
@pytest.mark.parametrize("host", ["127.0.0.1", ELSEWHERE])
@pytest.mark.usefixtures("home")
async def test_system_authorities_need_the_name_checked(host: str, mode: str) -> None:
    """Any host can have a certificate from one of the system's authorities: weaker modes are refused, as in psql."""
    with pytest.raises(SettingsError, match=r"sslrootcert=system.* needs sslmode=verify-full"):
        await attempt(f"postgresql://u@{host}:1/d?sslmode={mode}&sslrootcert=system")


@pytest.mark.usefixtures("trusted")
async def test_client_shows_the_same_with_the_authorities_of_the_system(front: TlsFront) -> None:
    """An SSL context of reltask has the client's certificate, and the ALPN name for PostgreSQL 17's direct TLS."""
    await attempt(at(front, "127.0.0.1", "sslrootcert=system&sslcert={certificate}&sslkey={key}"))
    await attempt(at(front, "127.0.0.1", "sslmode=require&sslcert={certificate}&sslkey={key}"))
    assert front.shown == ["server", "server"]
    assert front.protocols == ["postgresql", "postgresql"]


@pytest.mark.parametrize("option", ["sslcert", "sslcrl"])
async def test_file_beside_the_authorities_of_the_system_is_named(front: TlsFront, option: str) -> None:
    """An SSL context of reltask ignores no file either."""
    with pytest.raises(SettingsError, match=rf"{option} .*/nope\.pem: No such file"):
        await attempt(at(front, ELSEWHERE, f"sslrootcert=system&{option}=/nope.pem"))
    assert front.in_clear == []


# A server that is away


async def test_key_in_its_usual_place_is_no_mistake(front: TlsFront, usual: Path) -> None:
    """`sslcert` may be named alone: an outage is not reported as a missing key, which would end retries."""
    front.key.rename(usual / "postgresql.key")
    url = at(front, "127.0.0.1", "sslmode=require&sslcert={certificate}")
    await attempt(url)
    assert front.shown == ["server"]
    with pytest.raises(TransientError):
        await attempt(url.replace(f":{front.port}/", ":1/"))
    assert read_url(url).mistake(FileNotFoundError(2, "No such file")) is None
    front.certificate.write_text("not a certificate")
    with pytest.raises(SettingsError, match=r"sslcert .*server\.pem: .*PEM"):
        await attempt(url)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("root.crt", "sslrootcert"),
        ("root.crl", "sslcrl"),
        ("postgresql.crt", "sslcert"),
    ],
)
async def test_unusable_file_in_its_usual_place_is_named(front: TlsFront, usual: Path, name: str, option: str) -> None:
    """The driver reads default files, so they can be wrong; a retry would not help."""
    (usual / name).touch()
    with pytest.raises(SettingsError, match=rf"{option} .*{name}: .*PEM"):
        await attempt(at(front, ELSEWHERE, "sslmode=require"))


@pytest.mark.parametrize(
    "variables",
    [
        {"PGSSLCERT": "/nope.crt"},
        {"PGSSLCERT": "/nope.crt", "PGSSLMODE": "verify-full"},
        {"PGSSLROOTCERT": "system", "PGSSLCERT": "/nope.crt"},
    ],
)
@pytest.mark.parametrize("url", ["postgresql:///d?host=/nope&sslmode=", "postgresql://%2Fnope,%2Fnowhere/d"])
@pytest.mark.usefixtures("home")
async def test_socket_that_is_not_there_is_not_blamed_on_tls(
    monkeypatch: pytest.MonkeyPatch, url: str, variables: dict[str, str]
) -> None:
    """There is no TLS on a socket file, so variables for another database do not apply, as in psql."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TransientError, match="No such file"):
        await attempt(url)


@pytest.mark.parametrize(
    "failure",
    [ConnectionRefusedError(111, "refused"), TimeoutError(), socket.gaierror(-2, "unknown name"), OSError(101, "away")],
)
@pytest.mark.usefixtures("home")
def test_outage_is_never_blamed_on_files(failure: OSError) -> None:
    """The driver reads files before it connects: once it connects, they were good, whatever they are by now."""
    target = read_url(f"postgresql://{ELSEWHERE}/d?sslmode=require&sslcert=/nope.crt")
    assert target.mistake(failure) is None
    assert target.mistake(FileNotFoundError(2, "No such file")) is not None
