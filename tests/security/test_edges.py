"""What reltask reads, sends and creates at its edges: nothing that another user has planted, nothing to a stranger."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
from hatchling.builders.sdist import SdistBuilder

from reltask import App
from reltask.cli import run
from reltask.config import load_settings
from reltask.errors import AccessRefused, ReltaskError, SettingsError
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.url import read_url, warn_unverified
from tests.azure.tls import SSL_REQUEST, server_context
from tests.postgres_server import PostgresServer

# Child processes


TASKS = """
import sys
from reltask import App

app = App("sqlite:///jobs.db")

@app.task(isolation="process")
def flags() -> dict[str, int]:
    import planted_dependency
    return {name: int(getattr(sys.flags, name)) for name in ("safe_path", "isolated", "ignore_environment")}
"""
PLANTED = "from pathlib import Path\nPath('ran').touch()\nraise SystemExit('planted')\n"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-P", "-I", "-E", ""])
def test_child_imports_nothing_planted(option: str, tmp_path: Path) -> None:
    """A module in the working directory replaces none of Python's own in a child; the parent's options are kept.

    The app and what it imports are found in the child as in the parent, here in that very directory.
    """
    (tmp_path / "hostile_tasks.py").write_text(TASKS)
    (tmp_path / "planted_dependency.py").touch()
    (tmp_path / "reltask.toml").write_text("[worker]\nconcurrency = 1\n")
    parents = ["tomllib"] if option in {"-P", "-I"} else []  # the parent imports it after the app
    for name in ("logging", "threading", "importlib", "msgspec", "uuid", *parents):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    reltask = Path(sys.executable).parent / "reltask"
    program = [sys.executable, option, str(reltask)] if option else [str(reltask)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RELTASK_", "PYTHON"))}
    for arguments in (["enqueue", "hostile_tasks:app", "flags"], ["worker", "hostile_tasks:app", "--once"]):
        done = subprocess.run(
            [*program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        ((outcome, result, error),) = connection.execute("select outcome, result, error from reltask_runs")
    assert (outcome, error) == ("succeeded", None)
    isolated, ignores = option == "-I", option in {"-I", "-E"}
    assert json.loads(result) == {"safe_path": 1, "isolated": isolated, "ignore_environment": ignores}
    assert not (tmp_path / "ran").exists()


# Settings files


posix_only = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX")
CONTENTS = {"reltask.toml": "[worker]\nconcurrency = 3\n", "appsettings.json": '{"Reltask": {"Worker": {}}}'}


@pytest.fixture(params=CONTENTS)
def settings_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file: Path = tmp_path / request.param
    file.write_text(CONTENTS[request.param])
    return file


@posix_only
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o400])
def test_settings_file_of_ones_own_is_read(settings_file: Path, mode: int) -> None:
    """Also if a group may write it: its owner chose the group, and in many systems each user has a group alone."""
    settings_file.chmod(mode)
    load_settings(environ={}, directory=settings_file.parent)


@posix_only
@pytest.mark.parametrize("mode", [0o666, 0o646, 0o602])
@pytest.mark.parametrize("how", ["found", "--config", "RELTASK_CONFIG"])
def test_settings_file_that_others_may_write_is_refused(settings_file: Path, mode: int, how: str) -> None:
    """Any user of the machine could have written it; however it was named, and the error says what to run."""
    settings_file.chmod(mode)
    environ = {"RELTASK_CONFIG": str(settings_file)} if how == "RELTASK_CONFIG" else {}
    named = settings_file if how == "--config" else None
    with pytest.raises(SettingsError, match=r"every user of this machine may change it.*run: chmod o-w .*/"):
        load_settings(environ=environ, directory=settings_file.parent, file=named)


as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can change users")


@as_root
@pytest.mark.parametrize("link", [False, True], ids=["file", "link"])
def test_settings_file_of_another_user_is_refused(settings_file: Path, *, link: bool) -> None:
    """A file's owner decides what it says, and a link's owner which file it is."""
    if link:
        settings_file.symlink_to(settings_file.rename(settings_file.parent / f"real{settings_file.suffix}"))
        load_settings(environ={}, directory=settings_file.parent)
    os.chown(settings_file, 1, -1, follow_symlinks=False)
    with pytest.raises(SettingsError, match=r"belongs to another user \(uid 1\).*run: chown (-h )?0 .*/"):
        load_settings(environ={}, directory=settings_file.parent)


@as_root
@pytest.mark.parametrize("name", CONTENTS)
def test_settings_file_of_root_is_read(name: str) -> None:
    """As one that an administrator or a container's image has put there."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / name
        file.write_text(CONTENTS[name])
        file.chmod(0o644)
        load_settings(environ={}, directory=Path(folder))  # imports what the other user may not be able to
        os.seteuid(1)
        try:
            load_settings(environ={}, directory=Path(folder))
        finally:
            os.seteuid(0)


# Tokens


class Asked:
    """A credential that counts its requests."""

    def __init__(self) -> None:
        self.times = 0

    def get_token(self, _scope: str) -> Any:
        self.times += 1
        return SimpleNamespace(token="secret-token")


SERVERS = {
    "postgresql://u@{}/db?auth=entra": ".postgres.database.azure.com",
    "mssql://{}/db": ".database.windows.net",
    "mssql://{}/db?authentication=ActiveDirectoryManagedIdentity": ".database.windows.net",
}
ELSEWHERE = [
    "db.example.com",
    "127.0.0.1",
    "localhost",
    "[::1]",
    "server{azure}.example.com",
    "evil{azure_without_dot}",
    "{azure_without_dot}",
]


def names(form: str, host: str) -> str:
    azure = SERVERS[form]
    return form.format(host.format(azure=azure, azure_without_dot=azure[1:]))


@pytest.mark.parametrize("form", SERVERS)
@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize("place", ["environment", "file", "command line"])
def test_planted_url_gets_no_token(
    form: str, host: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL from outside the code sends a token to Azure's host names only; loopback is none of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELTASK_DATABASE_URL", raising=False)
    credential = Asked()
    url = names(form, host)
    app = App(credential=credential)
    if place == "environment":
        monkeypatch.setenv("RELTASK_DATABASE_URL", url)
    elif place == "file":
        (tmp_path / "reltask.toml").write_text(f"[database]\nurl = {json.dumps(url)}\n")
    else:
        app.configure(database__url=url)
    with pytest.raises(SettingsError, match=rf"only sent to Azure's host names.*\({place}.*write the URL in code"):
        app._make_store()
    assert credential.times == 0


def test_planted_url_is_refused_by_migrate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It connects by itself, and keeps the same rule."""
    monkeypatch.setenv("RELTASK_DATABASE_URL", "postgresql://u@127.0.0.1:1/db?auth=entra")
    for arguments in (["migrate"], ["migrate", "--check"], ["status"], ["doctor"]):
        assert run(arguments) in (1, 78)
        assert "only sent to Azure's host names" in "".join(capsys.readouterr())


def test_planted_list_of_servers_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server of a list has to be Azure's, and the name that the certificate of a SQL Server must have."""
    azure = "server.postgres.database.azure.com"
    for url in (
        f"postgresql://u@{azure},db.example.com/db?auth=entra",
        f"postgresql://u@/db?auth=entra&host={azure},db.example.com",
        "mssql://server.database.windows.net/db?hostname_in_certificate=db.example.com",
    ):
        monkeypatch.setenv("RELTASK_DATABASE_URL", url)
        with pytest.raises(SettingsError, match="only sent to Azure's host names"):
            App(credential=Asked())._make_store()


@pytest.mark.parametrize("form", SERVERS)
@pytest.mark.parametrize("host", ["server{azure}", "SERVER{azure}.", "server.privatelink{azure}"])
def test_url_of_azure_gets_a_token(form: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the URL is written."""
    monkeypatch.setenv("RELTASK_DATABASE_URL", names(form, host))
    App(credential=None if "mssql" in form else Asked())._make_store()


@pytest.mark.parametrize("form", SERVERS)
@pytest.mark.parametrize("host", ELSEWHERE[:3])
def test_code_may_name_any_host_for_a_token(form: str, host: str) -> None:
    """The app's own URL is not planted."""
    App(names(form, host), credential=Asked())._make_store()
    App(settings={"database.url": names(form, host)}, credential=Asked())._make_store()


# An unverified PostgreSQL server


PASSWORD = "s3cret-of-the-database"


class Impostor:
    """Speaks TLS with a certificate of its own and asks for the password, as an impostor would."""

    def __init__(self, directory: Path) -> None:
        self.authority = directory / "authority.pem"
        self.heard = b""
        self._context = server_context(directory, self.authority)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError):
                    client.settimeout(5)
                    self.heard += client.recv(8)
                    client.sendall(b"S")
                    with self._context.wrap_socket(client, server_side=True) as inside:
                        self.heard += inside.recv(4096)
                        inside.sendall(b"R\x00\x00\x00\x08\x00\x00\x00\x03")
                        self.heard += inside.recv(4096)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def impostor(home: Path) -> Iterator[Impostor]:
    made = Impostor(home)
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No TLS options but those of the URL."""
    for name in [name for name in os.environ if name.startswith(("PG", "SSL_CERT"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    warn_unverified.cache_clear()
    return tmp_path


async def log_in(impostor: Impostor, options: str = "") -> ReltaskError:
    """0.0.0.0 leads to this machine, but does not look local."""
    url = f"postgresql://u:{PASSWORD}@0.0.0.0:{impostor.port}/db?{options}"
    with pytest.raises(ReltaskError) as caught:
        await connect(url, PostgresOptions(connect_timeout=5))
    return caught.value


@pytest.mark.parametrize("options", ["", "sslmode=verify-full", "sslrootcert=system", "sslmode="])
async def test_unverified_server_does_not_receive_the_password(impostor: Impostor, options: str) -> None:
    """Off this machine the default is `verify-full`, with the system's authorities; the error names the option."""
    error = await log_in(impostor, options)
    assert isinstance(error, AccessRefused)
    assert "cannot be verified" in error.message
    assert "sslrootcert=" in error.remedy
    assert PASSWORD.encode() not in impostor.heard
    assert impostor.heard == SSL_REQUEST


async def test_weaker_mode_has_to_be_chosen_and_says_so_once(
    impostor: Impostor, caplog: pytest.LogCaptureFixture
) -> None:
    """`sslmode=require` accepts any certificate, as in psql; one warning for each process says what that means."""
    for _ in range(2):
        await log_in(impostor, "sslmode=require")
    assert PASSWORD.encode() in impostor.heard
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "reltask.database")
    assert "sslmode=require" in record.getMessage()
    assert "sslmode=verify-full" in record.getMessage()


@pytest.mark.parametrize(
    ("url", "environment", "warned"),
    [
        ("postgresql://u@db.example.com/d?sslmode=require", {}, True),
        ("postgresql://u@db.example.com/d?sslmode=prefer", {}, True),
        ("postgresql://u@db.example.com/d", {"PGSSLMODE": "require"}, True),
        ("postgresql://u@db.example.com/d", {"PGSSLMODE": "disable"}, False),
        ("postgresql://u@db.example.com/d?sslmode=verify-ca&sslrootcert=/ca.pem", {}, False),
        ("postgresql://u@db.example.com/d?sslmode=require&sslrootcert=/ca.pem", {}, False),
        ("postgresql://u@db.example.com/d?sslmode=require&auth=entra", {}, False),
        ("postgresql://u@db.example.com/d", {}, False),
        ("postgresql://u@localhost/d?sslmode=disable", {}, False),
        ("postgresql:///d?host=/run/postgresql", {"PGSSLMODE": "require"}, False),
    ],
)
@pytest.mark.usefixtures("home")
def test_warning_is_about_unverified_servers_elsewhere(
    url: str, environment: dict[str, str], warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Not about this machine, a verified server, or a default that a variable cannot weaken."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    read_url(url)
    assert bool(caplog.records) is warned


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "%2Frun%2Fpostgresql"])
@pytest.mark.usefixtures("home")
def test_this_machine_needs_no_certificate(host: str) -> None:
    """Loopback and socket files stay as they were."""
    assert "verify" not in read_url(f"postgresql://u@{host}/d").dsn


# SQLite files


@posix_only
@pytest.mark.parametrize("how", ["file", "dangling link"])
def test_new_sqlite_file_is_readable_by_its_owner_only(how: str, tmp_path: Path) -> None:
    """Arguments and results are in it; also in the files that SQLite keeps beside it. Whatever the umask."""
    file = tmp_path / "jobs.db"
    if how == "dangling link":
        file.symlink_to(tmp_path / "real.db")
    before = os.umask(0)
    try:
        app = App(f"sqlite:///{file}")
        app.task(name="victim")(lambda: None).enqueue_sync()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        app.close()
    finally:
        os.umask(before)
    assert len(modes) >= 3, "the database, its log and its shared memory"
    assert set(modes.values()) == {0o600}


@posix_only
def test_existing_sqlite_file_keeps_its_mode(tmp_path: Path) -> None:
    """Its owner has chosen who may read it, as for a group of workers under several users."""
    file = tmp_path / "jobs.db"
    file.touch()
    file.chmod(0o660)
    app = App(f"sqlite:///{file}")
    app.status_sync()
    app.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o660


# The tests' own server


async def test_server_of_the_tests_needs_a_password(postgres_server: PostgresServer) -> None:
    """Any user of the machine can reach its port while the tests run, and a superuser runs programs."""
    for password in ("", "guess"):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(postgres_server.url(), password=password, passfile=os.devnull)


# What is built, and from what


ROOT = Path(__file__).parents[2]


def test_source_archive_says_how_to_report_a_vulnerability() -> None:
    """A packager of reltask finds SECURITY.md in it."""
    included = {file.relative_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert {"SECURITY.md", "CHANGELOG.md"} <= included


def test_images_and_tools_are_pinned() -> None:
    """A tag can be moved, and the newest version of a tool has not been reviewed yet.

    Only the job that tries the wheel as a new user does installs what is newest, and it may write nothing.
    """
    workflows = "".join(file.read_text() for file in (ROOT / ".github").rglob("*.yml"))
    before, tried, after = re.split(r"(\n  try:\n.*?)(?=\n  \w+:\n)", workflows, maxsplit=1, flags=re.DOTALL)
    assert "permissions: {}" in tried
    assert "install dist/*.whl" in tried
    workflows = before + after
    images = re.findall(r"mcr\.microsoft\.com/\S+", workflows)
    assert images
    assert [image for image in images if not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image)] == []
    installs = re.findall(r"(?:PIP\)|pip) install (.+)", workflows + (ROOT / "Makefile").read_text())
    assert len(installs) >= 4
    exact = re.compile(r"--require-hashes|--no-deps .*--editable \.|--no-deps dist/\*\.whl$|^[\w-]+==[\d.]+$")
    assert [line for line in installs if not exact.search(line)] == []
