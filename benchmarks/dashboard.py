"""How fast are the dashboard's screens on large tables, and what do 50 viewers cost a queue that is being drained?

    make bench-dashboard                           10⁶ jobs; 10⁷ ledger rows on PostgreSQL, 10⁶ on SQLite; 20 minutes
    make bench-dashboard ARGS="postgres-viewers"   one of the four parts; the others' results stay
    QUICK=1 make bench-dashboard                   a hundredth of it; nothing is kept

Screens are asked for through the ASGI application, each REPEATS times after one that warms up. The answer includes
everything but the network: reading, rendering, headers.

    drain      ──── without viewers ────   ──── with 50 open overviews ────     in pairs, PAIRS times
    throughput        jobs/s                        jobs/s                       within 3 %
    processor         seconds per job               seconds per job, and those of the dashboard
    share             of a core that the dashboard and its sessions take meanwhile

The dashboard and its viewers are processes of their own. Each pair gives one ratio of each kind, the order of a pair
changes from one to the next, and the median of the ratios counts, with the interval that holds the true median in 19 of
20 such measurements: the speed of a shared machine changes from minute to minute. Processor time (on Linux: of the
worker, of the sessions in PostgreSQL, and of the dashboard) changes less: it says what a drain can lose, whatever else
the machine does. It is also read beside nothing at all, with one viewer and with 50.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
from msgspec import Struct, to_builtins

from reltask import App
from reltask.model.screens import ListedState
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.schema import migrate_postgres
from reltask.stores.statement import load
from tests.postgres_server import PostgresServer

QUICK = bool(os.environ.get("QUICK"))
JOBS = 10_000 if QUICK else 1_000_000
RUNS = {"postgres": 100_000 if QUICK else 10_000_000, "sqlite": 10_000 if QUICK else 1_000_000}
REPEATS = 5 if QUICK else 20
VIEWERS = 50
WATCHED = 2 if QUICK else 20
"""Seconds for which processor time is read."""
DRAINED = 2_000 if QUICK else 15_000
PAIRS = 2 if QUICK else 24
RESULT = Path(__file__).parent / "results" / "dashboard.json"
SCREENS = [
    "/",
    *(f"/jobs?state={state}" for state in ListedState),
    *(
        "/jobs?state=due&task=task+7",
        "/jobs?state=dead&task=task+7",
        "/jobs?state=paused&queue=queue+3",
        "/jobs?q=key+77",
        "/tasks",
        "/queues",
        "/schedules",
        "/dead",
        "/dead?task=task+7",
        "/workers",
        "/leases",
    ),
    "/actions",
    "/confirm?action=retry&state=dead",
    "/confirm?action=cancel&state=due&queue=queue+3",
]
POSTGRES_LIMIT = """
insert into reltask.limits (name, running, declaration, changed_at) values ('customer', 1, 'benchmark', now())
"""
POSTGRES = """
insert into reltask.jobs (
    id, task, queue, next_run_time, dead_at, paused_at, suspended, fence, key, schedule, limit_key
)
select gen_random_uuid(), 'task ' || i % 20, 'queue ' || i % 4, now() + (i - $1 / 2) * interval '10 milliseconds',
       case when i % 100 = 1 then now() - i * interval '1 millisecond' end,
       case when i % 100 = 2 then now() - i * interval '1 millisecond' end,
       i % 100 = 3, 1, case when i % 100 = 5 then 'key ' || i end,
       case when i % 10000 = 5 then '{"every":"1m","missed_grace":"1m"}' end,
       case when i % 5 = 4 then 'customer:' || i % 10000 end
from generate_series(1, $1::integer) as i
"""
POSTGRES_RUNS = """
insert into reltask.runs (job_id, fence, slot_no, task, queue, worker, attempt, nominal_time, due_at, claimed_at,
                          finished_at, outcome)
select gen_random_uuid(), 1, 1, 'task ' || i % 20, 'queue ' || i % 4, 'w', 1, ended, ended, ended, ended, 'succeeded'
from generate_series(1, $1::integer) as i
cross join lateral (select now() - i * interval '50 milliseconds' as ended) as run
"""
POSTGRES_ERRORS = """
insert into reltask.runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, claimed_at, finished_at,
                          outcome, error)
select id, fence, 1, task, queue, 1, dead_at, dead_at, dead_at, dead_at, 'failed',
       'ValueError: order ' || fence || ' is gone'
from reltask.jobs where dead_at is not null
"""
SQLITE_LIMIT = """
insert into reltask_limits (name, running, declaration, changed_at) values ('customer', 1, 'benchmark', :now)
"""
SQLITE = """
with recursive n (i) as (select 1 union all select i + 1 from n where i < :jobs)
insert into reltask_jobs (
    id, task, queue, created_at, next_run_time, dead_at, paused_at, suspended, fence, key, schedule, limit_key
)
select printf('%08x-0000-7000-8000-%012x', i, i), 'task ' || (i % 20), 'queue ' || (i % 4), :now,
       :now + (i - :jobs / 2) * 10000, case when i % 100 = 1 then :now - i * 1000 end,
       case when i % 100 = 2 then :now - i * 1000 end, i % 100 = 3, 1,
       case when i % 100 = 5 then 'key ' || i end,
       case when i % 10000 = 5 then '{"every":"1m","missed_grace":"1m"}' end,
       case when i % 5 = 4 then 'customer:' || (i % 10000) end
from n
"""
SQLITE_RUNS = """
with recursive n (i) as (select 1 union all select i + 1 from n where i < :runs)
insert into reltask_runs (job_id, fence, slot_no, task, queue, worker, attempt, nominal_time, due_at, claimed_at,
                          finished_at, outcome)
select printf('%08x-1111-7000-8000-%012x', i, i), 1, 1, 'task ' || (i % 20), 'queue ' || (i % 4), 'w', 1, t, t, t, t,
       'succeeded'
from (select i, :now - i * 50000 as t from n)
"""


class Screen(Struct, frozen=True):
    """How long one screen took, in milliseconds."""

    path: str
    median: float
    most: float


async def measure(app: App) -> list[Screen]:
    """Ask for each screen."""
    dashboard = app._make_dashboard(None, local="act")  # noqa: SLF001 - a confirmation is a screen, too
    transport = httpx.ASGITransport(dashboard, client=("127.0.0.1", 1))
    found = []
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=120) as client:
        listed = (await client.get("/jobs?state=due")).text
        for path in [*SCREENS, *re.findall(r"jobs/[0-9a-f-]{36}", listed)[:1]]:
            (await client.get(path)).raise_for_status()
            times = []
            for _ in range(REPEATS):
                dashboard.live.forget()
                started = time.perf_counter()
                (await client.get(path)).raise_for_status()
                times.append((time.perf_counter() - started) * 1_000)
            found.append(
                Screen(
                    re.sub(r"^jobs/.*", "/jobs/{id}", path), round(statistics.median(times), 1), round(max(times), 1)
                )
            )
            print(f"  {found[-1].path:<32} {found[-1].median:8.1f} ms, at most {found[-1].most:.1f}", flush=True)  # noqa: T201 - a program\'s output
    return found


async def explain(url: str) -> dict[str, float]:
    """The execution time of the screens' statements in milliseconds, by the server's own clock."""
    page: dict[str, object] = {"task": None, "queue": None, "after_at": None, "after_id": None, "limit": 51}
    asked: list[tuple[str, dict[str, object]]] = [
        ("read_overview", {"most": 10_001}),
        *(("page_jobs", {**page, "state": str(state)}) for state in ListedState),
        ("find_jobs", {"key": "key 105", "limit": 50}),
        ("list_schedules", {"after_task": None, "after_id": None, "limit": 51}),
        ("list_dead_errors", {"most": 2_000, "characters": 400}),
        ("sample_runs", {"since": timedelta(days=1), "limit": 10_000}),
        ("list_limits", {"most": 10_001}),
    ]
    connection = await connect(url, PostgresOptions())
    found: dict[str, float] = {}
    for verb, columns in asked:
        (statement,) = load("postgres", verb, "numbered")
        arguments = statement.arguments({**columns, "now": None})
        text = f"explain (analyze, format json) {statement.text}"
        times = [json.loads(await connection.fetchval(text, *arguments))[0]["Execution Time"] for _ in range(5)]
        found[f"{verb} {columns.get('state', '')}".strip()] = round(statistics.median(times), 1)
    await connection.close()
    for name, took in found.items():
        print(f"  {name:<32} {took:8.1f} ms in the server")  # noqa: T201 - a program\'s output
    return found


class Drain(Struct, frozen=True):
    """One worker has emptied a queue."""

    speed: float
    """Jobs per second."""
    processor: float
    """Microseconds of processor time per job: of this process, of the server's sessions, and of the dashboard."""
    share: float
    """Percent of one core that the dashboard and its sessions took."""


async def drain(url: str, dashboard: list[int]) -> Drain:
    """Fill a queue, and time how one worker empties it; `dashboard`: its process, and those of its sessions."""
    app = App(url, settings={"worker.concurrency": 20})

    @app.task(queue="drained")
    async def nothing() -> None: ...

    await app.enqueue_many(nothing.call() for _ in range(DRAINED))
    before = {pid: _seconds([pid]) for pid in {os.getpid(), *dashboard, *await _sessions(url)}}
    started = time.perf_counter()
    async with app.worker() as worker:
        await worker.drained()
        took = time.perf_counter() - started
        spent = {
            pid: _seconds([pid]) - before.get(pid, 0.0) for pid in {os.getpid(), *dashboard, *await _sessions(url)}
        }
    app.close()
    share = sum(spent[pid] for pid in dashboard) / took
    return Drain(DRAINED / took, sum(spent.values()) / DRAINED * 1_000_000, share * 100)


class Watching:
    """A dashboard, and a process that holds overviews open."""

    def __init__(self, dashboard: asyncio.subprocess.Process, watcher: asyncio.subprocess.Process) -> None:
        self.pid = dashboard.pid
        self._watcher = watcher

    async def viewers(self, count: int) -> None:
        """Have this many, each with its first frame."""
        assert self._watcher.stdin is not None
        assert self._watcher.stdout is not None
        self._watcher.stdin.write(f"{count}\n".encode())
        await self._watcher.stdin.drain()
        await self._watcher.stdout.readline()


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watching]:
    """A dashboard in a process of its own, without viewers."""
    program = [sys.executable, "-m", "reltask.cli", "dashboard", "--database", url, "--port", "0"]
    dashboard = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert dashboard.stdout is not None
    address = (await dashboard.stdout.readline()).decode().split()[-1]
    pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    watcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.dashboard", "watch", address), **pipes
    )
    try:
        yield Watching(dashboard, watcher)
    finally:
        for one in (watcher, dashboard):
            one.terminate()
            await one.wait()


async def watch(address: str) -> None:
    """Hold overviews open, until this process is ended: their number is the last line of standard input.

    Sockets are read and nothing is parsed: viewers have machines of their own, and must not take time from this one.
    """
    server = urlsplit(address)
    request = f"GET /live HTTP/1.1\r\nHost: {server.netloc}\r\nConnection: close\r\n\r\n".encode()

    async def read(first: asyncio.Event) -> None:
        while True:  # a stream ends after 20 seconds
            reader, writer = await asyncio.open_connection(server.hostname, server.port)
            try:
                writer.write(request)
                while part := await reader.read(65_536):
                    if not first.is_set() and b"event:" in part:
                        first.set()
            finally:
                writer.close()

    open_now: list[asyncio.Task[None]] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        for one in open_now:
            one.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
        seen = [asyncio.Event() for _ in range(int(line))]
        open_now = [asyncio.create_task(read(first)) for first in seen]
        for first in seen:
            await first.wait()
        print(line.strip(), flush=True)  # noqa: T201 - the benchmark waits for this line


async def costs(url: str) -> dict[str, dict[str, float]]:
    """Processor time in percent of one core: of the dashboard, and of its sessions in PostgreSQL on this machine."""
    found = {}
    async with watching(url) as watched:
        for count in (1, VIEWERS):
            await watched.viewers(count)
            sessions = await _sessions(url)
            before, started = (_seconds([watched.pid]), _seconds(sessions)), time.perf_counter()
            await asyncio.sleep(WATCHED)
            took = time.perf_counter() - started
            shares = [
                round(100 * (_seconds(pids) - was) / took, 2)
                for pids, was in zip(([watched.pid], sessions), before, strict=True)
            ]
            found[str(count)] = {"dashboard": shares[0], "server": shares[1]}
            print(f"  {count} viewers: dashboard {shares[0]} % of a core, server {shares[1]} %", flush=True)  # noqa: T201 - a program's output
    return found


async def _sessions(url: str) -> list[int]:
    """The processes of PostgreSQL that serve this database; SQLite has none."""
    if url.startswith("sqlite"):
        return []
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    await connection.close()
    return [row["pid"] for row in rows]


def _seconds(pids: list[int]) -> float:
    """The processor time of these processes."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def beside(url: str) -> dict[str, Any]:
    """Drains without and with viewers, in turns."""
    alone: list[Drain] = []
    watched: list[Drain] = []
    async with watching(url) as dashboard:
        await dashboard.viewers(VIEWERS)
        processes = [dashboard.pid, *await _sessions(url)]
        await drain(url, processes)  # warms up
        for nth in range(PAIRS):
            for is_watched in (False, True) if nth % 2 == 0 else (True, False):
                await dashboard.viewers(VIEWERS if is_watched else 0)
                (watched if is_watched else alone).append(await drain(url, processes))
            print(f"  {alone[-1].speed:,.0f} jobs/s alone, {watched[-1].speed:,.0f} with {VIEWERS} viewers", flush=True)  # noqa: T201 - a program\'s output
    found = {
        kind: compare([getattr(one, kind) for one in alone], [getattr(one, kind) for one in watched])
        for kind in ("speed", "processor")
    }
    for kind, one in found.items():
        print(f"  {kind}: {one['change']:+.1%}, {one['low']:+.1%} to {one['high']:+.1%}", flush=True)  # noqa: T201 - a program\'s output
    shares = [round(statistics.median(one.share for one in drains), 2) for drains in (alone, watched)]
    print(f"  the dashboard: {shares[0]} % of a core alone, {shares[1]} % with viewers", flush=True)  # noqa: T201 - a program\'s output
    return {"jobs": DRAINED, "pairs": PAIRS, **found, "share": {"alone": shares[0], "watched": shares[1]}}


def compare(alone: list[float], watched: list[float]) -> dict[str, float]:
    """Both medians, the median of the ratios, and the interval that holds the true one in 19 of 20 cases."""
    ratios = sorted(one / other - 1 for one, other in zip(watched, alone, strict=True))
    low = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))
    return {
        "alone": round(statistics.median(alone), 1),
        "watched": round(statistics.median(watched), 1),
        "change": round(statistics.median(ratios), 4),
        "low": round(ratios[low], 4),
        "high": round(ratios[-1 - low], 4),
    }


async def fill_postgres(url: str) -> None:
    """Jobs in every state, a fifth of them with a limit, and a ledger."""
    await migrate_postgres(url)
    connection = await asyncpg.connect(url)
    await connection.execute(POSTGRES_LIMIT)
    for statement, count in ((POSTGRES, JOBS), (POSTGRES_RUNS, RUNS["postgres"])):
        await connection.execute(statement, count, timeout=3_600)
    await connection.execute(POSTGRES_ERRORS)
    await connection.execute("vacuum analyze")
    await connection.close()


async def screens_of_postgres() -> dict[str, Any]:
    """Fill a server of its own, and measure."""
    with PostgresServer() as server:
        url = server.create_database("dashboard")
        await fill_postgres(url)
        return await read_postgres(url)


async def read_postgres(url: str) -> dict[str, Any]:
    """The screens of a filled database, and their statements."""
    app = App(url)
    screens = to_builtins(await measure(app))
    app.close()
    return {
        "jobs": JOBS,
        "runs": RUNS["postgres"],
        "screens": screens,
        "statements": await explain(url),
        "cpu": await costs(url),
    }


async def viewers_of_postgres() -> dict[str, Any]:
    """A queue of its own, drained with and without viewers."""
    with PostgresServer() as server:
        url = server.create_database("drained")
        await migrate_postgres(url)
        return {"viewers": await beside(url)}


async def screens_of_sqlite() -> dict[str, Any]:
    """Fill a file, and measure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.db"
        app = App(f"sqlite:///{path}")
        await app.status()
        with closing(sqlite3.connect(path)) as connection, connection:
            now = time.time_ns() // 1_000
            connection.execute(SQLITE_LIMIT, {"now": now})
            connection.execute(SQLITE, {"jobs": JOBS, "now": now})
            connection.execute(SQLITE_RUNS, {"runs": RUNS["sqlite"], "now": now})
            connection.execute("analyze")
        screens = to_builtins(await measure(app))
        app.close()
        return {"jobs": JOBS, "runs": RUNS["sqlite"], "screens": screens}


async def viewers_of_sqlite() -> dict[str, Any]:
    """A queue of its own, drained with and without viewers."""
    with tempfile.TemporaryDirectory() as folder:
        return {"viewers": await beside(f"sqlite:///{folder}/drained.db")}


PARTS = {
    "sqlite-screens": screens_of_sqlite,
    "sqlite-viewers": viewers_of_sqlite,
    "postgres-screens": screens_of_postgres,
    "postgres-viewers": viewers_of_postgres,
}


async def main(parts: list[str]) -> None:
    """Measure these parts, or all, and keep each result unless QUICK."""
    for part in parts or PARTS:
        print(part, flush=True)  # noqa: T201 - a program's output
        keep(part, await PARTS[part]())


def keep(part: str, measured: dict[str, Any]) -> None:
    """Renew one part of the results."""
    if not QUICK:
        kept = json.loads(RESULT.read_text(encoding="utf-8"))
        kept[part.partition("-")[0]] |= measured
        RESULT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[2]) if sys.argv[1:2] == ["watch"] else main(sys.argv[1:]))
