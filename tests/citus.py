"""Which statements the distributed planner of Citus accepts, on the cluster that `RELTASK_TEST_CITUS` names.

    RELTASK_TEST_CITUS=postgresql://postgres@127.0.0.1:5432/postgres python -m tests.citus

The variable is the URL of a database on the coordinator, whose owner the user is. A schema in it is
made, its triggers are dropped, it is distributed (all its tables are then on one node) and dropped.
Each statement is prepared and run with nulls and empty arrays, in a transaction that is rolled back.
A statement that a constraint refuses was planned. Decision 14 has the answers of Citus 13.2.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import asyncpg

from reltask.stores.postgres.schema import migrate_postgres
from reltask.stores.statement import load

VARIABLE = "RELTASK_TEST_CITUS"
SCHEMA = "reltask_survey"
SQL = Path(__file__).parents[1] / "src/reltask/stores/postgres/sql"
TRIGGERS = """
    select tgname from pg_trigger
    where tgrelid = format('%I.jobs', $1::text)::regclass and not tgisinternal
"""
OF_A_SESSION = {"reset_session", "lock_schema", "advisory_lock", "begin_transaction"}
"""Statements that name no table."""


async def survey(url: str) -> dict[str, str]:
    """The first line of the error of each statement that is not planned; an empty text for the others."""
    connection = await asyncpg.connect(url, server_settings={"plan_cache_mode": "force_custom_plan"})
    try:
        await connection.execute(f"drop schema if exists {SCHEMA} cascade")
        await migrate_postgres(f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}")
        # Citus distributes no table that has triggers.
        for trigger in await connection.fetch(TRIGGERS, SCHEMA):
            await connection.execute(f"drop trigger {trigger['tgname']} on {SCHEMA}.jobs")
        await connection.execute(f"select citus_schema_distribute('{SCHEMA}')")
        verbs = sorted(path.stem for path in SQL.glob("*.sql") if path.stem not in OF_A_SESSION)
        return {verb: await _planned(connection, verb) for verb in verbs}
    finally:
        await connection.execute(f"drop schema if exists {SCHEMA} cascade")
        await connection.close()


async def _planned(connection: Any, verb: str) -> str:
    for statement in load("postgres", verb, "numbered", SCHEMA):
        transaction = connection.transaction()
        await transaction.start()
        try:
            prepared = await connection.prepare(statement.text)
            await prepared.fetch(*([] if of.kind == "array" else None for of in prepared.get_parameters()))
        except asyncpg.IntegrityConstraintViolationError:
            continue
        except asyncpg.PostgresError as error:
            return str(error).partition("\n")[0]
        finally:
            await transaction.rollback()
    return ""


def main() -> None:
    """Print the table."""
    url = os.environ.get(VARIABLE)
    if url is None:
        sys.exit(f"{VARIABLE} names no cluster.")
    found = asyncio.run(survey(url))
    for verb, error in found.items():
        sys.stdout.write(f"{verb:20} {error or 'planned'}\n")
    sys.stdout.write(f"{sum(not error for error in found.values())} of {len(found)} are planned.\n")


if __name__ == "__main__":
    main()
