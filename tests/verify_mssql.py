"""Everything about SQL Server that was never seen on one, in one command: `make verify-mssql`.

    RELTASK_TEST_MSSQL=mssql://sa:…@127.0.0.1:1433/master make verify-mssql     an hour; with ARGS="--minutes 1" less

It creates databases of its own on that server and drops them. It writes `verify-mssql.md`, which has no secret in it
and can be pasted into an issue. On an emulator, what it cannot show is reported as "not here".

    suites       conformance, interleavings, clusters, roles, 50 workers on 10 000 jobs; with snapshots on and off
    storm        all verbs that lock at once, from many sessions; how many were deadlock victims; the audit afterwards
    plans        from the plan cache: no scan of Jobs, Runs or Leases by a verb that workers send
    escalation   how often row locks became a lock of the table
    throughput   jobs claimed and completed per second
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from reltask.model.job import Completion
from reltask.producer.audit import audit
from reltask.stores import mssql
from reltask.stores.mssql.schema import migrate_mssql
from reltask.stores.mssql.store import MssqlStore
from tests import babelfish, mssql_server, mssql_storm
from tests.plans.tsql import READS_ALL, WALKED
from tests.store.store_harness import new_job, request

REPORT = Path("verify-mssql.md")
SUITES = (
    "tests/store", "tests/worker", "tests/interleaving", "tests/cluster", "tests/cli", "tests/azure", "tests/faults",
    "tests/web", "tests/shards",
)  # fmt: skip
NOT_HERE = "not here: an emulator has none"
DEADLOCKS = """SELECT SUM(cntr_value) FROM sys.dm_os_performance_counters
               WHERE counter_name LIKE N'Number of Deadlocks/sec%' AND instance_name LIKE N'[_]Total%'"""
ESCALATIONS = """SELECT SUM(index_lock_promotion_count)
                 FROM sys.dm_db_index_operational_stats(DB_ID(), NULL, NULL, NULL)"""
SCANS = """SELECT CAST(texts.text AS nvarchar(400)), CAST(plans.query_plan AS nvarchar(max))
           FROM sys.dm_exec_query_stats AS stats
           CROSS APPLY sys.dm_exec_sql_text(stats.sql_handle) AS texts
           CROSS APPLY sys.dm_exec_text_query_plan(
               stats.plan_handle, stats.statement_start_offset, stats.statement_end_offset
           ) AS plans
           WHERE texts.text LIKE N'%reltask.%' AND texts.text LIKE N'%Lock order%'"""
SHOWPLAN = "{http://schemas.microsoft.com/sqlserver/2004/07/showplan}"
HOT = {"[Jobs]", "[Runs]", "[Leases]"}


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    result: str
    good: bool = True


def main() -> int:
    """Run all parts, write the report, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify_mssql")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the storm lasts")
    parser.add_argument("--jobs", type=int, default=10_000, help="for the throughput")
    parser.add_argument("--no-suites", action="store_true", help="only the parts that pytest does not run")
    given = parser.parse_args()
    if not os.environ.get(mssql_server.VARIABLE):
        print(f"{mssql_server.VARIABLE} names no server: see docs/sqlserver.md.", file=sys.stderr)  # noqa: T201
        return 2
    if mssql_server.is_babelfish():
        babelfish.install()
    findings = [Finding("server", mssql_server.version())]
    findings += [] if given.no_suites else list(suites())
    with mssql_server.mssql_server() as server:
        url = server.create_database()
        asyncio.run(migrate_mssql(url))
        findings += storm(url, given.minutes)
        findings += [throughput(url, given.jobs), escalation(url), plans(url)]
    lines = ["| what | result |", "|---|---|", *(f"| {what} | {result} |" for what, result, _ in findings)]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(REPORT.read_text(encoding="utf-8"))  # noqa: T201
    return 0 if all(finding.good for finding in findings) else 1


def suites() -> Iterator[Finding]:
    """The suites of pytest, with both settings of READ_COMMITTED_SNAPSHOT."""
    for snapshot in [None] if mssql_server.is_babelfish() else ["on", "off"]:
        chosen = {} if snapshot is None else {mssql_server.SNAPSHOT: snapshot}
        command = [sys.executable, "-m", "pytest", "-q", "-k", "mssql or odbc", *SUITES]
        done = subprocess.run(command, env=os.environ | chosen, capture_output=True, text=True, check=False)
        last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
        yield Finding(f"suites, READ_COMMITTED_SNAPSHOT {snapshot or 'as it is'}", last, done.returncode == 0)


def storm(url: str, minutes: float) -> list[Finding]:
    """All verbs at once. A deadlock costs a retry; what is lost or doubled is a fault."""
    before = number(url, DEADLOCKS)
    calls, errors = asyncio.run(mssql_storm.rage(url, minutes * 60))
    after = number(url, DEADLOCKS)
    deadlocks = str(after - before) if isinstance(before, int) and isinstance(after, int) else str(after)
    bad = {kind: count for kind, count in errors.items() if kind not in {"TransientError", "AmbiguousError"}}
    missing = sorted(mssql_storm.WRITING - set(calls))
    breaks = asyncio.run(_breaks(url))
    return [
        Finding(f"storm of {sum(calls.values())} statements in {minutes:g} min", f"errors: {dict(errors)}", not bad),
        Finding(
            f"verbs of the storm, of {len(mssql_storm.WRITING)} that lock",
            f"not sent: {', '.join(missing)}" if missing else "all sent",
            not missing,
        ),
        Finding("deadlocks on the server during the storm", deadlocks, deadlocks.isdigit() or deadlocks == NOT_HERE),
        Finding("audit after the storm", "; ".join(breaks) or "no slot lost or doubled", not breaks),
    ]


async def _breaks(url: str) -> list[str]:
    store = MssqlStore(url)
    try:
        report = await audit(store, task=None, lock_timeout=timedelta(minutes=2), timeout=timedelta(minutes=30))
    finally:
        await store.close()
    return [f"{one.kind} of {one.task}" for one in report.breaks]


def throughput(url: str, jobs: int) -> Finding:
    """Claim and complete, in batches of 100, from 8 sessions."""

    async def measure() -> float:
        stores = [MssqlStore(url) for _ in range(8)]
        for first in range(0, jobs, 1_000):
            await stores[0].enqueue_jobs([new_job(task="count") for _ in range(min(1_000, jobs - first))])
        began = time.monotonic()

        async def drain(worker: str, store: MssqlStore) -> None:
            while claims := (await store.claim_jobs(request(worker, tasks=["count"], limit=100))).claims:
                await store.complete_jobs(worker, [Completion(hold=claim.hold) for claim in claims])

        await asyncio.gather(*(drain(f"t{nth}", store) for nth, store in enumerate(stores)))
        took = time.monotonic() - began
        await asyncio.gather(*(store.close() for store in stores))
        return jobs / took

    return Finding("throughput, 8 sessions, batches of 100", f"{asyncio.run(measure()):.0f} jobs/s")


def escalation(url: str) -> Finding:
    """Row locks must never become a lock of the table."""
    count = number(url, ESCALATIONS)
    return Finding("lock escalations", str(count), count in {0, NOT_HERE})


def plans(url: str) -> Finding:
    """What the server planned for the statements of the storm."""
    try:
        with closing(mssql_server.open_connection(url)) as connection:
            rows = mssql_server.run(connection, SCANS)
    except Exception as error:  # noqa: BLE001 - the views need a permission, and an emulator lacks them
        return Finding("plans", unseen(error), unseen(error) == NOT_HERE)
    found = sorted({scan for text, plan in rows if plan for scan in scans(text, plan)})
    return Finding(f"plans of {len(rows)} cached statements", "; ".join(found) or "no scan", not found)


def scans(text: str, plan: str) -> list[str]:
    """The scans of Jobs, Runs and Leases in a statement's plan that its verb does not make on purpose."""
    verb = next((verb for purpose, verb in purposes().items() if purpose in text), "")
    if verb in READS_ALL:
        return []
    return [
        f"{verb}: {operator.get('PhysicalOp')} of {named['Table'].strip('[]')} by {named.get('Index', '').strip('[]')}"
        for operator in ET.fromstring(plan).iter(f"{SHOWPLAN}RelOp")
        if operator.get("PhysicalOp", "").endswith("Scan")
        for named in (one.attrib for one in operator.findall(f"./*/{SHOWPLAN}Object"))
        if named.get("Table") in HOT and named.get("Index") != f"[{WALKED.get(verb)}]"
    ]


@cache
def purposes() -> dict[str, str]:
    """The verbs by the first line of their files, which the cache has, too."""
    files = Path(mssql.__file__).parent.glob("sql/*.sql")
    return {file.read_text(encoding="utf-8").partition("\n")[0]: file.stem for file in files}


def unseen(error: Exception) -> str:
    """Why a view was not read: an emulator has none, and a server may ask for VIEW SERVER STATE."""
    return NOT_HERE if mssql_server.is_babelfish() else f"not seen: {' '.join(str(error).split())}"


def number(url: str, question: str) -> int | str:
    """One number of the server's views, or why it was not seen."""
    try:
        with closing(mssql_server.open_connection(url)) as connection:
            return int(mssql_server.run(connection, question)[0][0])
    except Exception as error:  # noqa: BLE001 - the views need a permission, and an emulator lacks them
        return unseen(error)


if __name__ == "__main__":
    sys.exit(main())
