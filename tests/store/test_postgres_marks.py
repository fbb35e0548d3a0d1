"""Marks of limits on PostgreSQL: statements that write them for many jobs silence the triggers for themselves only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg

from reltask.model.job import Completion, Hold, NewJob
from reltask.stores.postgres import values
from reltask.stores.postgres.errors import PATIENCE
from reltask.stores.statement import load

INSERT = """
insert into reltask.jobs (id, task, queue, next_run_time, limit_key)
values (gen_random_uuid(), 't', 'default', now(), 'smtp') returning id
"""
CLAIM = """
update reltask.jobs
set locked_by = 'w', claim_token = id, locked_at = now(), heartbeat_at = now(), slot_started_at = now(),
    claim_timeout_ms = 1000, lock_expires_at = now() + interval '1 second', fence = 1, attempt = 1
"""
MARKS = "select count(*), coalesce(sum(freed), 0) from reltask.marks"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session, and a transaction in it that is rolled back."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection
    finally:
        await transaction.rollback()
        await connection.close()


async def send(connection: asyncpg.Connection, verb: str, columns: values.Columns) -> None:
    (statement,) = load("postgres", verb, "numbered")
    await connection.fetch(statement.text, *statement.arguments({**columns, "now": None}))


async def test_an_insert_after_a_batch_leaves_its_own_mark(postgres_url: str) -> None:
    """The batch leaves one for all of its jobs; a statement by hand, in the same transaction, leaves another."""
    async with opened(postgres_url) as connection:
        batch = [NewJob(id=uuid4(), task="t", limits=("smtp",)) for _ in range(3)]
        await send(connection, "enqueue_limited", values.new_jobs(batch))
        assert tuple(await connection.fetchrow(MARKS)) == (1, 0)
        await connection.execute(INSERT)
        assert tuple(await connection.fetchrow(MARKS)) == (2, 0)


async def test_an_end_by_hand_after_a_batch_frees_its_place(postgres_url: str) -> None:
    """The batch frees two places of the key with one mark; a row that is deleted by hand frees the third."""
    async with opened(postgres_url) as connection:
        ids = [await connection.fetchval(INSERT) for _ in range(3)]
        await connection.execute("delete from reltask.marks")
        await connection.execute(CLAIM)
        ends = values.completions([Completion(Hold(job_id, 1), has_limits=True) for job_id in ids[:2]])
        await send(connection, "complete_limited", {**ends, "worker": "w", "patience": PATIENCE})
        assert tuple(await connection.fetchrow(MARKS)) == (1, 2)
        await connection.execute("delete from reltask.jobs")
        assert tuple(await connection.fetchrow(MARKS)) == (2, 3)
