"""Run the rows of the fault matrix: `python -m tests.faults`, or `make faults`.

Exits with 1 if anything was doubled or lost.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import traceback
from collections.abc import Iterator

from tests.faults import results
from tests.faults.catalog import DATABASES, QUICK, ROWS, Row
from tests.faults.environment import Database, Environment, NotRunHere, Verdict
from tests.mssql_server import VARIABLE, databases
from tests.postgres_server import PostgresServer


def main() -> int:
    """Read the command line, and run it."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no worker and no server running
    if options.list:
        _say("\n".join(f"{row.name:26} {row.fault}" for row in ROWS))
        return 0
    failed = 0 if options.write_docs else _run_all(options)
    if options.record:
        results.write_page()
    return failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS], help="only this row; repeatable")
    parser.add_argument("--database", choices=databases(), help=f"only on this one; mssql where {VARIABLE} names one")
    parser.add_argument("--trials", type=int, help="how often each row runs")
    parser.add_argument("--quick", action="store_true", help="a few rows, one trial each; records nothing")
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument("--write-docs", action="store_true", help="only write docs/promises.md from the last results")
    parser.add_argument(
        "--no-record", dest="record", action="store_false", help="leave results.json and docs/promises.md alone"
    )
    options = parser.parse_args()
    options.record = options.record and not options.quick
    return options


def _run_all(options: argparse.Namespace) -> int:
    failed = 0
    with _server(options.database) as server:
        for row, database in _chosen(options):
            trials = 1 if options.quick else options.trials or row.trials(database)
            entry = run_row(row, database, server, trials)
            failed += entry.get("duplicates", 0) + entry.get("lost", 0)
            _say(_line(entry))
            if options.record:
                results.merge(entry)
    return 1 if failed else 0


def _chosen(options: argparse.Namespace) -> Iterator[tuple[Row, Database]]:
    for row in ROWS:
        for database in (one for one in DATABASES if one in databases()):
            wanted = (options.row is None or row.name in options.row) and options.database in (None, database)
            if options.quick:
                wanted = wanted and database in QUICK.get(row.name, ())
            if wanted and not row.missing(database):
                yield row, database


@contextlib.contextmanager
def _server(database: Database | None) -> Iterator[PostgresServer | None]:
    """A server that the rows may crash; None if no chosen row needs one."""
    if database in ("sqlite", "mssql"):
        yield None
        return
    with PostgresServer() as server:
        yield server


def run_row(row: Row, database: Database, server: PostgresServer | None, trials: int) -> results.Entry:
    """Run `trials` trials of one row.

    After a trial that lost something, the next one gets a new environment.
    """
    verdicts: list[Verdict] = []
    while len(verdicts) < trials:
        try:
            with row.env(database, server) as env:
                while len(verdicts) < trials:
                    verdicts.append(_trial(row, env))
                    if verdicts[-1].lost:
                        break
        except NotRunHere as error:
            return results.absent(row, database, f"not run here: {error}")
    return results.summary(row, database, verdicts)


def _trial(row: Row, env: Environment) -> Verdict:
    try:
        verdict = env.judge(row.run(env))
    except NotRunHere:
        raise
    except Exception:  # noqa: BLE001 - whatever it is, the trial did not come to its end
        traceback.print_exc()
        return Verdict(0, 1, None)
    if verdict.duplicates or verdict.lost:
        _say(f"{row.name} on {env.database}: {verdict}")
    return verdict


def _line(entry: results.Entry) -> str:
    head = f"{entry['row']:26} {entry['database']:9}"
    if "why" in entry:
        return f"{head} {entry['why']}"
    median, most = entry["recovery_median"], entry["recovery_max"]
    counts = f"{entry['trials']:3} trials  {entry['duplicates']} duplicates  {entry['lost']} lost"
    return f"{head} {counts}  {entry['cut_short']:3} runs cut short  recovery {median} s, at most {most} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
