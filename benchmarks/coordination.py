"""What 1, 10, 100, 200 and 1 000 idle workers cost the database, and what a job costs them all.

    make bench-coordination             about half an hour
    QUICK=1 make bench-coordination     some minutes; rough numbers, nothing is kept
    ARGS="--coordination lease --workers 100,200"   only a part; its figures are renewed, the others stay

**What is counted.** `pg_stat_statements` counts every statement at the server: there is no proxy and
no code of reltask in between, and BEGIN, LISTEN and NOTIFY count like everything else. Each number of workers has a
database of its own, so that all can be measured at the same time; the observer's queries run in another one. A thousand
workers are measured with the lease only, the default: with the others each worker does all of the maintenance, or tries
over connections of its own. `paced` is the lease without signals, as behind a pooler (`?pgbouncer=true`).

**When.** All settings are the defaults, with a poll of 60 s. After the start the workers have SETTLE seconds to settle:
candidates for the lease find their turns. The window is a multiple of a minute, so that each poll and each step of
the maintenance falls into it as often as it should.

**With what.** A worker is a real `Worker` with its own store and connections. To have a thousand on a small machine, up
to 200 of them share a process; they share nothing else.

**Under load.** With the lease and `paced`, after the idle window, a producer enqueues JOBS_PER_SECOND jobs a second,
one by one. The claims that were sent meanwhile, by the jobs that were run, are the claims per job; the ledger tells
when each job was claimed, and the difference to its due time is the pick-up.

**A held row.** Then a session keeps the row of a due job locked for SOON and HELD seconds: the claims of
the latter, per second.

**A lock's end.** Then a claim is written whose owner does not exist, with a lock of LOCK seconds: the time from its end
to the claim of another worker.

**A tenth free.** `--full` has workers with one place each; nine of ten are kept busy by long jobs, the rest take what
the producer enqueues, one job per second.
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
from typing import Any, NamedTuple

import asyncpg

from benchmarks.plot import Series, plot
from reltask import App
from reltask.stores.postgres.schema import migrate_postgres
from reltask.worker.waking import LONGEST
from tests.postgres_server import PostgresServer

COORDINATIONS = ["everyone", "advisory", "stealing", "lease", "paced"]
LOADED = {"lease": "load", "paced": "paced load"}
"""Fleets that are measured under load, too, and what their figures are called."""
WORKERS = [1, 10, 100, 200, 1000]
MOST_WITHOUT_LEASE = 200
PER_PROCESS = 200
JOBS_PER_SECOND, LOAD, QUICK_LOAD = 40, 20.0, 8.0
"""Jobs per second, and for how many seconds."""
SOON, HELD, LOCK = 10.0, 16.0, 4.0
"""Seconds in which workers look again soon at a held row, for which it is held then, and of a dead worker's lock."""
BUSY, FREE_SHARE, FULL_JOBS = 600.0, 10, 60
"""Seconds of a job that keeps a worker busy; one of this many is free, and gets this many jobs."""
FULL: dict[str, object] = {"worker.concurrency": 1, "worker.shutdown_grace": "0s"}
"""Settings of workers with one place: the end of the benchmark does not wait for their bodies, one after another."""
SETTLE, WINDOW = 120, 60
"""Seconds."""
QUICK_SETTLE, QUICK_WINDOW = 20, 30
RESULTS = Path(__file__).parent / "results"
STARTED = "started"

Counts = dict[str, float]
"""Calls by statement."""
Load = dict[str, float]
"""Figures of a loaded fleet, by name."""
Results = dict[str, dict[str, Any]]
"""What the file has: figures by number of workers, by name."""
CLAIM = "claim_timeout_ms = case"
"""Found in one statement only, the claim."""
PICK_UPS = """
    select (extract(epoch from claimed_at - due_at) * 1000)::float8 as late
    from reltask.runs where task = 'nothing' order by finished_at desc limit $1
"""
DIE = """
    update reltask.jobs
    set locked_by = 'gone', claim_token = gen_random_uuid(), locked_at = statement_timestamp(),
        heartbeat_at = statement_timestamp(), claim_timeout_ms = $2 * 1000, fence = fence + 1, attempt = attempt + 1,
        lock_expires_at = statement_timestamp() + $2 * interval '1 second',
        not_before = statement_timestamp(), slot_started_at = statement_timestamp()
    where id = $1
    returning lock_expires_at
"""
TAKEN = "select min(claimed_at) from reltask.runs where job_id = $1 and fence > 1"


# ── A process full of workers ────────────────────────────────────────────────────────────────────────────────────────


async def crew(url: str, coordination: str, count: int, *, full: bool) -> None:
    """Run `count` workers on this loop, until standard input ends."""
    async with AsyncExitStack() as workers:
        for _ in range(count):
            await workers.enter_async_context(make_app(url, coordination, full=full).worker())
        print(STARTED, flush=True)  # noqa: T201 - the parent waits for it
        await asyncio.to_thread(sys.stdin.read)


def make_app(url: str, coordination: str, *, full: bool = False) -> App:
    """An app with a task that does nothing, and one that takes long."""
    paced = coordination == "paced"
    settings: dict[str, object] = {"maintenance.coordination": "lease" if paced else coordination}
    app = App(f"{url}?pgbouncer=true" if paced else url, settings=settings | (FULL if full else {}))

    @app.task
    async def nothing() -> None: ...

    if full:

        @app.task
        async def busy() -> None:
            await asyncio.sleep(BUSY)

    return app


@contextmanager
def workers(url: str, coordination: str, count: int, *, full: bool = False) -> Iterator[None]:
    """Run the workers in as few processes as PER_PROCESS allows."""
    sizes = [min(PER_PROCESS, count - begun) for begun in range(0, count, PER_PROCESS)]
    command = [sys.executable, "-m", "benchmarks.coordination", "--crew", url, "--coordination", coordination]
    command += ["--full"] if full else []
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
        if coordination in LOADED:
            loads = {count: asyncio.run(load(server, name, coordination, loaded)) for count, name in names.items()}
    for name in names.values():
        server.drop_database(name)
    return {count: _rates(before[count], after[count], seconds) for count in counts}, loads


async def load(server: PostgresServer, name: str, coordination: str, seconds: float) -> Load:
    """What jobs, a held row and a dead worker cost a fleet, and how soon each is taken."""
    app = make_app(server.url(name), coordination)
    fleet = FleetUnderLoad(app, name, await asyncpg.connect(server.url()), await asyncpg.connect(server.url(name)))
    try:
        async with app.producer():
            await app.get_task("nothing").enqueue()  # the connection is open, and the fleet knows its size
            await asyncio.sleep(2.0)
            return {
                **await fleet.work(round(JOBS_PER_SECOND * seconds), 1 / JOBS_PER_SECOND),
                "looks per second at a held row": await fleet.held(),
                "taken over after, s": await fleet.taken_over(),
            }
    finally:
        await fleet.observer.close()
        await fleet.there.close()
        await asyncio.to_thread(app.close)


def measure_full(server: PostgresServer, coordination: str, count: int) -> Load:
    """How soon a job is picked up while a tenth of the fleet is free."""
    name = f"{coordination}_{count}_full"
    url = server.create_database(name)
    asyncio.run(migrate_postgres(url))
    with workers(url, coordination, count, full=True):
        found = asyncio.run(_work_of_a_tenth(server, coordination, name, count))
    server.drop_database(name)
    return found


async def _work_of_a_tenth(server: PostgresServer, coordination: str, name: str, count: int) -> Load:
    app = make_app(server.url(name), coordination, full=True)
    free = max(1, count // FREE_SHARE)
    fleet = FleetUnderLoad(app, name, await asyncpg.connect(server.url()), await asyncpg.connect(server.url(name)))
    try:
        async with app.producer():
            await app.enqueue_many(app.get_task("busy").call() for _ in range(count - free))
            busy = "select count(*) from reltask.jobs where locked_by is not null"
            while await fleet.there.fetchval(busy) < count - free:  # noqa: ASYNC110 - the database tells
                await asyncio.sleep(1.0)
            await asyncio.sleep(LONGEST + 5.0)  # the rest knows how many they are
            return await fleet.work(FULL_JOBS, 1.0)
    finally:
        await fleet.observer.close()
        await fleet.there.close()
        await asyncio.to_thread(app.close)


class FleetUnderLoad(NamedTuple):
    """A running fleet, a producer, and connections that look at both."""

    app: App
    name: str
    observer: asyncpg.Connection
    there: asyncpg.Connection

    async def claims(self) -> float:
        """How many claims have been sent so far."""
        counts = await read_counts(self.observer, self.name)
        return sum(calls for query, calls in counts.items() if CLAIM in query)

    async def work(self, jobs: int, pause: float) -> Load:
        """Enqueue jobs one by one; the claims per job, and how soon they were picked up."""
        before, due = await self.claims(), time.monotonic()
        for _ in range(jobs):
            await self.app.get_task("nothing").enqueue()
            due += pause
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        while len(waits := await self.there.fetch(PICK_UPS, jobs)) < jobs:  # noqa: ASYNC110 - the ledger tells
            await asyncio.sleep(1.0)
        late = sorted(row["late"] for row in waits)
        return {
            "claims per job": round((await self.claims() - before) / jobs, 2),
            "pick-up p50, ms": round(late[len(late) // 2], 1),
            "pick-up p99, ms": round(late[len(late) * 99 // 100], 1),
        }

    async def held(self) -> float:
        """Claims per second while a due row stays locked."""
        job = await self.app.get_task("nothing").using(delay="2s").enqueue()
        async with self.there.transaction():
            await self.there.execute("select from reltask.jobs where id = $1 for update", job.id)
            await asyncio.sleep(2.0 + SOON)
            before = await self.claims()
            await asyncio.sleep(HELD)
            return round((await self.claims() - before) / HELD, 2)

    async def taken_over(self) -> float:
        """Seconds from the end of a dead worker's lock to the next claim of its job."""
        job = await self.app.get_task("nothing").using(delay="1h").enqueue()
        ends = await self.there.fetchval(DIE, job.id, LOCK)
        while (taken := await self.there.fetchval(TAKEN, job.id)) is None:  # noqa: ASYNC110 - the ledger tells
            await asyncio.sleep(0.2)
        return round(float((taken - ends).total_seconds()), 2)


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


def write(results: Results) -> None:
    """The numbers as JSON, and as curves. What was not measured now stays as it was."""
    file = RESULTS / "coordination.json"
    kept: Results = json.loads(file.read_text(encoding="utf-8"))
    for name, by_workers in results.items():
        renewed = kept.get(name, {}) | by_workers
        kept[name] = {count: renewed[count] for count in sorted(renewed, key=int)}
    file.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    curves = [
        Series(name, [(int(count), rate) for count, rate in kept[name].items() if isinstance(rate, float)])
        for name in COORDINATIONS
        if name in kept
    ]
    picture = plot(curves, title="Statements per second at the database", x="idle workers")
    (RESULTS / "coordination.svg").write_text(picture, encoding="utf-8")


def main() -> None:
    """Measure everything or a part, or be a crew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--crew", metavar="URL")
    parser.add_argument("--coordination", choices=COORDINATIONS)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--workers", help="only these numbers of workers, with commas between them")
    parser.add_argument("--full", action="store_true", help="only the pick-up while a tenth of the fleet is free")
    given = parser.parse_args()
    if given.crew:
        asyncio.run(crew(given.crew, given.coordination, given.count, full=given.full))
        return
    wanted = [int(count) for count in given.workers.split(",")] if given.workers else WORKERS
    names = [given.coordination] if given.coordination else COORDINATIONS
    quick = bool(os.environ.get("QUICK"))
    with PostgresServer() as server:
        prepared(server)
        results: Results = {} if given.full else _idle_and_loaded(server, names, wanted, quick=quick)
        if given.full or not given.coordination:
            results |= _full(server, [name for name in names if name in LOADED], [n for n in wanted if n >= FREE_SHARE])
    if not quick:
        write(results)


def _idle_and_loaded(server: PostgresServer, names: list[str], wanted: list[int], *, quick: bool) -> Results:
    settle, window, loaded = (QUICK_SETTLE, QUICK_WINDOW, QUICK_LOAD) if quick else (SETTLE, WINDOW, LOAD)
    results: Results = {}
    for coordination in names:
        most = max(WORKERS) if coordination in LOADED else MOST_WITHOUT_LEASE
        counts = [count for count in wanted if count <= most]
        rates, loads = measure(server, coordination, counts, settle=settle, window=window, loaded=loaded)
        tell(coordination, rates)
        results[coordination] = {str(count): round(sum(found.values()), 2) for count, found in rates.items()}
        if coordination in LOADED:
            results[LOADED[coordination]] = {str(count): figures for count, figures in loads.items()}
        for count, figures in loads.items():
            print(f"    {count} workers under load: {figures}", flush=True)  # noqa: T201
    return results


def _full(server: PostgresServer, names: list[str], wanted: list[int]) -> Results:
    results: Results = {}
    for coordination in names:
        found = {str(count): measure_full(server, coordination, count) for count in wanted}
        results[f"{coordination}, a tenth free"] = found
        print(f"{coordination}, a tenth free: {found}", flush=True)  # noqa: T201
    return results


if __name__ == "__main__":
    main()
