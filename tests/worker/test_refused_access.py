"""A database that refuses its workers for a while: what has run is recorded afterwards, and runs once."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from reltask import App, events
from tests.postgres_server import PostgresServer
from tests.worker.worker_harness import Recorder

ROLE = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'guest') then create role guest login; end if;
end $$
"""
GRANTS = ["grant usage on schema reltask to guest", "grant all on all tables in schema reltask to guest"]
END_SESSIONS = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'guest'"
REFUSALS = {
    "login": (["alter role guest nologin", END_SESSIONS], "alter role guest login", "28000"),
    "permission": (["revoke delete on reltask.jobs from guest"], "grant delete on reltask.jobs to guest", "42501"),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_success_outlives_a_refusal(postgres_server: PostgresServer, postgres_url: str, what: str) -> None:
    """A changed password or a missing grant says nothing about a row: a finished run stays a success."""
    name = postgres_url.rpartition("/")[2]
    refuse, permit, code = REFUSALS[what]
    postgres_server.execute(ROLE, "alter role guest login", *GRANTS, database=name)
    app, recorder = App(postgres_server.url(name, user="guest")), Recorder()
    app.subscribe(recorder)
    started, go_on, bodies = asyncio.Event(), asyncio.Event(), []

    @app.task(max_attempts=1)
    async def mail() -> None:
        bodies.append(1)
        started.set()
        await go_on.wait()

    operator = await asyncpg.connect(postgres_url)
    try:
        async with app.worker() as worker:
            job = await mail.enqueue()
            await started.wait()
            for statement in refuse:
                await operator.execute(statement)
            go_on.set()
            while not any(code in event.error for event in recorder.of(events.DatabaseUnavailable, verb="settle")):
                await recorder.wait(events.DatabaseUnavailable, len(recorder.of(events.DatabaseUnavailable)) + 1)
            await operator.execute(permit)
            await recorder.wait(events.RunSucceeded, job_id=job.id)
            await worker.drained()
            assert [run.outcome for run in await job.runs()] == ["succeeded"]
    finally:
        await operator.execute(permit)
        await operator.close()
    assert bodies == [1]
