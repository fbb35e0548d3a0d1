"""What 1, 10, 100, 200 and 1 000 idle workers cost the database, and what a job costs them all.

    make bench-coordination             about half an hour
    QUICK=1 make bench-coordination     some minutes; rough numbers, nothing is kept
    ARGS="--coordination lease --most 200"   only a part; nothing is kept

**What is counted.** `pg_stat_statements` counts every statement at the server: there is no proxy and
no code of reltask in between, and BEGIN, LISTEN and NOTIFY count like everything else. Each number of workers has a
database of its own, so that all can be measured at the same time; the observer's queries run in another one. A thousand
workers are measured with the lease only, the default: with the others each worker does all of the maintenance, or tries
over connections of its own.

**When.** All settings are the defaults, with a poll of 60 s. After the start the workers have SETTLE seconds to settle:
candidates for the lease find their turns. The window is a multiple of a minute, so that each poll and each step of
the maintenance falls into it as often as it should.

**With what.** A worker is a real `Worker` with its own store and connections. To have a thousand on a small machine, up
to 200 of them share a process; they share nothing else.

**Under load.** With the lease, after the idle window, a producer enqueues JOBS_PER_SECOND jobs a second, one by one.
The claims that were sent meanwhile, by the jobs that were run, are the claims per job; the ledger tells when each job
was claimed, and the difference to its due time is the pick-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import asyncpg

from benchmarks.plot import Series, plot
from reltask import App
from reltask.stores.postgres.schema import migrate_postgres
from tests.postgres_server import PostgresServer

COORDINATIONS = ["everyone", "advisory", "stealing", "lease"]
WORKERS = [1, 10, 100, 200, 1000]
MOST_WITHOUT_LEASE = 200
PER_PROCESS = 200
JOBS_PER_SECOND, LOADED, QUICK_LOADED = 40, 30.0, 8.0
"""Jobs per second, and for how many seconds."""
SETTLE, WINDOW = 120, 60
"""Seconds."""
QUICK_SETTLE, QUICK_WINDOW = 20, 30
RESULTS = Path(__file__).parent / "results"
STARTED = "started"

Counts = dict[str, float]
"""Calls by statement."""
Load = dict[str, float]
"""Figures of a loaded fleet, by name."""
CLAIM = "claim_timeout_ms = case"
"""Found in one statement only, the claim."""
PICK_UPS = """
    select (extract(epoch from claimed_at - due_at) * 1000)::float8 as late
    from reltask.runs where task = 'nothing' order by finished_at desc limit $1
"""


# ── A process full of workers ────────────────────────────────────────────────────────────────────────────────────────


async def crew(url: str, coordination: str, count: int) -> None:
    """Run `count` workers on this loop, until standard input ends."""
    async with AsyncExitStack() as workers:
        for _ in range(count):
            await workers.enter_async_context(make_app(url, coordination).worker())
        print(STARTED, flush=True)  # noqa: T201 - the parent waits for it
        await asyncio.to_thread(sys.stdin.read)


def make_app(url: str, coordination: str) -> App:
    """An app with a task that does nothing."""
    app = App(url, settings={"maintenance.coordination": coordination})

    @app.task
    async def nothing() -> None: ...

    return app


@contextmanager
def workers(url: str, coordination: str, count: int) -> Iterator[None]:
    """Run the workers in as few processes as PER_PROCESS allows."""
    sizes = [min(PER_PROCESS, count - begun) for begun in range(0, count, PER_PROCESS)]
    command = [sys.executable, "-m", "benchmarks.coordination", "--crew", url, "--coordination", coordination]
    crews = [
        subprocess.Popen([*command, "--count", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        for size in sizes
    ]
    try:
        for process in crews:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == STARTED
        yield
    finally:
        for process in crews:
            process.communicate()


# ── Measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def read_counts(connection: asyncpg.Connection, database: str) -> Counts:
    """How often each statement has been sent to this database so far."""
    rows = await connection.fetch(
        """select statement.query, statement.calls
           from pg_stat_statements as statement
           join pg_database as database on database.oid = statement.dbid
           where database.datname = $1 and statement.toplevel""",
        database,
    )
    counts: Counts = {}
    for row in rows:
        counts[row["query"]] = counts.get(row["query"], 0) + row["calls"]
    return counts


def measure(
    server: PostgresServer, coordination: str, counts: list[int], *, settle: float, window: float, loaded: float
) -> tuple[dict[int, Counts], dict[int, Load]]:
    """Statements per second, by statement, for each number of workers; and what jobs cost them."""
    names = {count: f"{coordination}_{count}" for count in counts}
    loads: dict[int, Load] = {}
    with ExitStack() as running:
        for count, name in names.items():
            url = server.create_database(name)
            asyncio.run(migrate_postgres(url))
            running.enter_context(workers(url, coordination, count))
        time.sleep(settle)
        before, began = asyncio.run(snapshots(server, names)), time.monotonic()
        time.sleep(window)
        after, seconds = asyncio.run(snapshots(server, names)), time.monotonic() - began
        if coordination == "lease":
            loads = {count: asyncio.run(load(server, name, loaded)) for count, name in names.items()}
    for name in names.values():
        server.drop_database(name)
    return {count: _rates(before[count], after[count], seconds) for count in counts}, loads


async def load(server: PostgresServer, name: str, seconds: float) -> Load:
    """Enqueue jobs one by one for a while; return the claims per job, and how soon they were picked up."""
    app = make_app(server.url(name), "off")
    nothing = app.get_task("nothing")
    observer, there = await asyncpg.connect(server.url()), await asyncpg.connect(server.url(name))
    try:
        async with app.producer():
            await nothing.enqueue()  # the connection is open, and the fleet knows its size
            await asyncio.sleep(2.0)
            before = await read_counts(observer, name)
            due, jobs = time.monotonic(), round(JOBS_PER_SECOND * seconds)
            for _ in range(jobs):
                await nothing.enqueue()
                due += 1 / JOBS_PER_SECOND
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.sleep(2.0)
            after = await read_counts(observer, name)
        claims = sum(rate for query, rate in _rates(before, after, 1.0).items() if CLAIM in query)
        waits = await there.fetch(PICK_UPS, jobs)
        late = sorted(row["late"] for row in waits)
        return {
            "claims per job": round(claims / jobs, 2),
            "pick-up p50, ms": round(late[len(late) // 2], 1),
            "pick-up p99, ms": round(late[len(late) * 99 // 100], 1),
        }
    finally:
        await observer.close()
        await there.close()
        await asyncio.to_thread(app.close)


async def snapshots(server: PostgresServer, names: dict[int, str]) -> dict[int, Counts]:
    """The counts of each database, by its number of workers."""
    connection = await asyncpg.connect(server.url())
    try:
        return {count: await read_counts(connection, name) for count, name in names.items()}
    finally:
        await connection.close()


def prepared(server: PostgresServer) -> None:
    """Have the server count statements, and take this many connections."""
    server.execute(
        "alter system set shared_preload_libraries = 'pg_stat_statements'",
        "alter system set max_connections = 3000",
    )
    server.restart()
    server.execute("create extension pg_stat_statements")


def _rates(before: Counts, after: Counts, seconds: float) -> Counts:
    rates = {query: (calls - before.get(query, 0)) / seconds for query, calls in after.items()}
    return {query: rate for query, rate in rates.items() if rate > 0}


# ── Telling ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def tell(coordination: str, rates: dict[int, Counts]) -> None:
    """The totals, and for the most workers what they consist of."""
    totals = ", ".join(f"{count}: {sum(by_query.values()):.2f}" for count, by_query in rates.items())
    print(f"{coordination}: {totals} statements per second", flush=True)  # noqa: T201 - a program's output
    most = rates[max(rates)]
    for query, rate in sorted(most.items(), key=lambda pair: -pair[1]):
        print(f"    {rate:8.3f}  {_short(query)}", flush=True)  # noqa: T201


def _short(query: str) -> str:
    """Enough of a statement to recognize it: its first line that is no comment, and the table that it writes to."""
    code = " ".join(line for line in query.splitlines() if not line.startswith("--"))
    words = " ".join(code.split())
    tables = dict.fromkeys(re.findall(r"reltask\.\w+|pg_\w+|reltask_leases", words))
    return f"{words[:40]} … {', '.join(tables)}"


def write(results: dict[str, dict[str, float]], loads: dict[int, Load]) -> None:
    """The numbers as JSON, and as curves."""
    kept = {**results, "load": {str(count): figures for count, figures in loads.items()}}
    (RESULTS / "coordination.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    curves = [
        Series(name, [(int(count), rate) for count, rate in by_workers.items()]) for name, by_workers in results.items()
    ]
    picture = plot(curves, title="Statements per second at the database", x="idle workers")
    (RESULTS / "coordination.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    """Measure everything, or be a crew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--crew", metavar="URL")
    parser.add_argument("--coordination", choices=COORDINATIONS)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--most", type=int, help="no more workers than this")
    given = parser.parse_args()
    if given.crew:
        asyncio.run(crew(given.crew, given.coordination, given.count))
        return
    quick = bool(os.environ.get("QUICK"))
    times = (
        {"settle": QUICK_SETTLE, "window": QUICK_WINDOW, "loaded": QUICK_LOADED}
        if quick
        else {
            "settle": SETTLE,
            "window": WINDOW,
            "loaded": LOADED,
        }
    )
    results: dict[str, dict[str, float]] = {}
    loads: dict[int, Load] = {}
    with PostgresServer() as server:
        prepared(server)
        for coordination in [given.coordination] if given.coordination else COORDINATIONS:
            most = min(given.most or max(WORKERS), max(WORKERS) if coordination == "lease" else MOST_WITHOUT_LEASE)
            rates, found_loads = measure(server, coordination, [n for n in WORKERS if n <= most], **times)
            loads |= found_loads
            tell(coordination, rates)
            for count, figures in found_loads.items():
                print(f"    {count} workers under load: {figures}", flush=True)  # noqa: T201
            results[coordination] = {str(count): round(sum(found.values()), 2) for count, found in rates.items()}
    if not quick and not given.coordination and not given.most:
        write(results, loads)


if __name__ == "__main__":
    main()
