"""What does a large ledger cost? A million and ten million rows, in one table and in one partition.

    python -m benchmarks.ledger [ROWS …]     renews benchmarks/results/ledger.json

The rows have ids in the order of time, as the library makes them: an audit reads the ledger by id. For each size, on
one table and on a divided one: bytes with indexes, completions per second in batches of BATCH while the rows are
there, and seconds of an audit. Then the rows become too old: on one table, rows per second of a leader that prunes
without a rest, for PRUNED rows; on the divided one, the seconds in which their partition is dropped.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg

from benchmarks.prune import HISTORY, LEFT, PARTITION
from reltask import App
from reltask.model.job import ClaimRequest, Completion, NewJob
from reltask.stores.postgres.schema import migrate_postgres
from reltask.stores.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer

SIZES = (1_000_000, 10_000_000)
BATCH, COMPLETED, PRUNED = 100, 20_000, 200_000
RESULT = Path(__file__).parent / "results" / "ledger.json"
BYTES = """
    select coalesce(sum(pg_total_relation_size(part.relid)), pg_total_relation_size('reltask.runs'))::bigint
    from pg_partition_tree('reltask.runs') as part where part.isleaf
"""
IN_ORDER = HISTORY.replace(
    "gen_random_uuid()", "('017' || lpad(to_hex(n), 9, '0') || substr(md5(n::text), 1, 20))::uuid"
).replace("as moment", "as moment, n")
"""Ids that begin with the row's number, in the partition of those days."""
PATIENCE = 600.0
Figures = dict[str, float]


async def measure(url: str, rows: int, *, divided: bool) -> Figures:
    """One ledger."""
    await migrate_postgres(url, partition_days=7 if divided else None)
    connection = await asyncpg.connect(url, command_timeout=PATIENCE)
    if divided:
        await connection.execute("alter table reltask.runs detach partition reltask.runs_before")
        await connection.execute(PARTITION)
    await connection.execute(IN_ORDER, rows)
    await connection.execute("vacuum analyze")
    size = int(await connection.fetchval(BYTES))
    store = PostgresStore(url)
    await store.open()
    found = {
        "GB": round(size / 1e9, 2),
        "completions per second": round(await completions(store)),
        "audit, s": round(await audited(url), 1),
    }
    if divided:
        found["dropped in, s"] = round(await dropped(store, connection, rows), 2)
    else:
        found["pruned rows per second"] = round(await pruned(store))
    await store.close()
    await connection.close()
    return found


async def completions(store: PostgresStore) -> float:
    """Completions per second; the time of enqueueing and claiming does not count."""
    request = ClaimRequest(
        worker="bench",
        token=uuid4(),
        queues=["default"],
        tasks=["new"],
        limit=BATCH,
        lock_timeout=timedelta(minutes=2),
        isolated=True,
        alive_for=timedelta(minutes=2),
    )
    seconds = 0.0
    for _ in range(COMPLETED // BATCH):
        await store.enqueue_jobs([NewJob(id=uuid4(), task="new") for _ in range(BATCH)])
        claims = (await store.claim_jobs(request)).claims
        began = time.perf_counter()
        await store.complete_jobs("bench", [Completion(hold=claim.hold) for claim in claims])
        seconds += time.perf_counter() - began
    return COMPLETED / seconds


async def audited(url: str) -> float:
    """Seconds of an audit of everything."""
    app = App(url)
    began = time.monotonic()
    report = await app.audit(timeout=timedelta(seconds=PATIENCE))
    seconds = time.monotonic() - began
    await asyncio.to_thread(app.close)
    if report.violations:
        raise RuntimeError("the audit found something")
    return seconds


async def pruned(store: PostgresStore) -> float:
    """Rows per second, row by row."""
    began, count, some = time.monotonic(), 0, 1
    while count < PRUNED and some:
        some = await store.prune_runs(older_than=timedelta(days=1), most=10**12, leader=None, limit=1000)
        count += some
    return count / (time.monotonic() - began)


async def dropped(store: PostgresStore, connection: asyncpg.Connection, rows: int) -> float:
    """Seconds until the old partition is gone."""
    began = time.monotonic()
    while await connection.fetchval(LEFT):
        await store.prune_runs(older_than=timedelta(days=1), most=10 * rows, leader=None, limit=1)
    return time.monotonic() - began


def main() -> None:
    """Print the figures, and keep them."""
    with PostgresServer() as server:
        for rows in [int(given) for given in sys.argv[1:]] or SIZES:
            for kind in ("one table", "divided"):
                url = server.create_database("ledger")
                found = asyncio.run(measure(url, rows, divided=kind == "divided"))
                server.drop_database("ledger")
                print(f"{rows} rows, {kind}: {found}", flush=True)  # noqa: T201 - a program's output
                keep(str(rows), kind, found)


def keep(rows: str, kind: str, found: Figures) -> None:
    """Renew these figures in the file; the others stay."""
    kept: dict[str, dict[str, Figures]] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    kept.setdefault(rows, {})[kind] = found
    RESULT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
