"""Where contestants meet: one server for all, a fresh database for each try, and processes that are watched.

    with stage.database(contestant) as place:             a copy of the tables it has prepared once
        stage.enqueue(contestant, place, "many", range(n))
        with stage.working(contestant, place, size=n) as work:
            work.finish(contestant, place, range(n))      every number once, and all of it committed

Results are verified: bodies write to shared memory what ran (see `contestants/process.py`), and a query checks that
the database has recorded everything as done. A number that did not run, or ran twice, fails the measurement.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import psycopg

from benchmarks.contestants import Contestant
from benchmarks.contestants.process import Effects
from benchmarks.environments import ROOT, Environment, environment
from tests.postgres_server import PostgresServer

SERVER_SETTINGS = {
    "shared_preload_libraries": "'pg_stat_statements'",
    "max_connections": "600",
    # the defaults of PostgreSQL: a commit is on the disk before it is acknowledged
    "fsync": "on",
    "full_page_writes": "on",
}
"""Beside those of `tests/postgres_server.py`."""
STALLED = 60.0
"""Seconds without anything happening after which a try is given up."""
LOOK = 0.005
"""Seconds between two looks."""


class UnverifiedError(Exception):
    """The numbers do not add up, or nothing happens any more."""


class ContestantError(Exception):
    """A contestant's process failed, or it is not installed."""


class Place(NamedTuple):
    """A database of a contestant's own."""

    url: str
    ask: Callable[[str], int]
    """The one number that a query answers."""


class Child(NamedTuple):
    """A process, and the file that holds its output."""

    process: subprocess.Popen[str]
    output: IO[str]

    @property
    def said(self) -> str:
        self.output.seek(0)
        return self.output.read().strip()


class Work:
    """What worker processes have done so far."""

    def __init__(self, name: str, children: Sequence[Child], effects: Sequence[Effects]) -> None:
        self._name = name
        self.children = children
        self._effects = effects

    @property
    def ran(self) -> int:
        """How many numbers have run; one that ran in two processes counts twice."""
        return sum(len(effects.counts) - bytes(effects.counts).count(0) for effects in self._effects)

    def finish(self, contestant: Contestant, place: Place, numbers: range) -> float:
        """Wait until all of them ran and the database knows it; seconds from the first body to then."""
        self.wait_until(lambda: self.ran >= len(numbers))
        self.wait_until(lambda: place.ask(contestant.unfinished) == 0)
        ended = time.monotonic_ns()
        self.verify(numbers)
        return (ended - min(self.began(numbers))) / 1e9

    def verify(self, numbers: range) -> None:
        """Each of these numbers ran exactly once."""
        parts = [effects.counts[numbers.start : numbers.stop] for effects in self._effects]
        counts = [sum(each) for each in zip(*parts, strict=True)]
        if any(count != 1 for count in counts):
            twice = sum(count > 1 for count in counts)
            raise UnverifiedError(f"of {len(counts)} jobs {counts.count(0)} did not run, and {twice} ran twice")

    def began(self, numbers: range) -> list[int]:
        """When each number's body began, in nanoseconds of the machine's monotonic clock."""
        return [
            max(each) for each in zip(*(e.stamps[numbers.start : numbers.stop] for e in self._effects), strict=True)
        ]

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Poll until it is true; give up when a process has ended, or nothing has run for long."""
        ran, until = -1, time.monotonic() + STALLED
        while not done():
            for child in self.children:
                if child.process.poll() is not None:
                    raise ContestantError(f"a process of {self._name} ended: {_last_line(child.said)}")
            if ran != self.ran:
                ran, until = self.ran, time.monotonic() + STALLED
            if time.monotonic() > until:
                raise UnverifiedError(f"nothing has happened for {STALLED:g} s; {ran} jobs ran")
            time.sleep(LOOK)


class Stage:
    """The server, and the environments of the contestants."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self._environments: dict[str, Environment] = {}
        self._templates: set[str] = set()
        self._made = 0

    # Databases

    @contextmanager
    def database(self, contestant: Contestant) -> Iterator[Place]:
        """A fresh PostgreSQL database with the contestant's tables."""
        template, name = f"template_{contestant.name}", self._new_name(contestant)
        if template not in self._templates:
            self.server.drop_database(template)  # of a try that failed
            self.run(contestant, "prepare", self.server.create_database(template))
            self._templates.add(template)
        url = self.server.create_database(name, template=template)
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                yield Place(url, lambda query: _number(connection.execute(query.encode()).fetchone()))
        finally:
            self.server.drop_database(name)

    @contextmanager
    def file(self, contestant: Contestant) -> Iterator[Place]:
        """A fresh SQLite file with the contestant's tables."""
        path = self.directory / f"{self._new_name(contestant)}.db"
        self.run(contestant, "prepare", f"sqlite:///{path}")
        connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        try:
            yield Place(f"sqlite:///{path}", lambda query: _number(connection.execute(query).fetchone()))
        finally:
            connection.close()

    def _new_name(self, contestant: Contestant) -> str:
        self._made += 1
        return f"{contestant.name}_{self._made}"

    # Processes

    def run(self, contestant: Contestant, verb: str, url: str, *rest: object) -> Any:
        """Run one of the contestant's verbs to its end; what it answered."""
        done = subprocess.run(  # noqa: S603 - contestants
            self._command(contestant, verb, url, *rest),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        if done.returncode != 0:
            raise ContestantError(f"{verb}: {_last_line(done.stderr)}")
        return json.loads(done.stdout.splitlines()[-1]) if verb in {"one", "many"} else None

    def enqueue(self, contestant: Contestant, place: Place, verb: str, numbers: range, *, pause: float = 0.0) -> Any:
        """Enqueue numbers by `one` or by `many`, in a process of its own; what `process.py` says about it."""
        return self.run(contestant, verb, place.url, numbers.start, len(numbers), pause)

    @contextmanager
    def working(self, contestant: Contestant, place: Place, *, size: int, processes: int = 1) -> Iterator[Work]:
        """Start worker processes; `size` is one more than the highest number that may come."""
        files = [Effects.create(self.directory / f"effects_{index}", size) for index in range(processes)]
        commands = [self._command(contestant, "work", place.url, file, contestant.concurrency) for file in files]
        with started(commands) as children:
            yield Work(contestant.name, children, [Effects(file) for file in files])

    def _command(self, contestant: Contestant, *words: object) -> list[str]:
        return [self.python(contestant), "-m", contestant.module, *map(str, words)]

    def python(self, contestant: Contestant) -> str:
        """The interpreter of its environment."""
        if not contestant.peer:
            return sys.executable
        if contestant.name not in self._environments:
            self._environments[contestant.name] = environment(contestant.name)
        found = self._environments[contestant.name]
        if found.python is None:
            raise ContestantError(found.problem)
        return found.python


@contextmanager
def open_stage() -> Iterator[Stage]:
    """A server of its own and a directory, both gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="reltask-bench-") as directory, PostgresServer() as server:
        server.execute(*(f"alter system set {name} = {value}" for name, value in SERVER_SETTINGS.items()))
        server.restart()
        for database in ("postgres", "template1"):
            server.execute("create extension pg_stat_statements", database=database)
        yield Stage(server, Path(directory))


@contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[Child]]:
    """These processes, until the block is left: they end when their standard input does."""
    children = [_start(command) for command in commands]
    try:
        yield children
    finally:
        for child in children:
            _end(child)


def _start(command: Sequence[str]) -> Child:
    output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by _end
    return Child(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True, cwd=ROOT),  # noqa: S603
        output,
    )


def _end(child: Child) -> None:
    try:
        child.process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
    child.output.close()


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["without a word"])[-1][:300]


def _number(row: Any) -> int:
    return int(row[0])
