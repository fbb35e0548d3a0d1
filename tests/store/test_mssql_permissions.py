"""The roles of SQL Server's permissions.sql: each can do its work, and no more.

Only where there is a server.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest

from reltask.model.durable import NewSignal
from reltask.model.job import NewJob
from reltask.stores.migration import schema_scripts
from tests.mssql_server import VARIABLE, open_connection, run
from tests.store import role_work

pytestmark = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no server")

ROLES = ("run", "operate", "enqueue", "read")
LOOK = [f"SELECT * FROM reltask.{table}" for table in ("Jobs", "Runs", "Workers", "Leases", "LeaseWaiters", "Metrics")]
REWRITE_LEDGER = ["UPDATE reltask.Runs SET Outcome = 'failed'"]
REMOVE_LEASES = ["DELETE FROM reltask.Leases"]
CHANGE_TABLES = [
    "ALTER TABLE reltask.Jobs ADD Mine int",
    "DROP TABLE reltask.Runs",
    "UPDATE reltask.Meta SET SchemaVersion = 99",
]
CHANGE = [
    "UPDATE reltask.Jobs SET Priority = 0",
    "DELETE FROM reltask.Jobs",
    "DELETE FROM reltask.Runs",
    "DELETE FROM reltask.Workers",
    "UPDATE reltask.Leases SET Term = 1",
    "DELETE FROM reltask.LeaseWaiters",
    "DELETE FROM reltask.Metrics",
]
FORBIDDEN = {
    "run": [*REWRITE_LEDGER, *REMOVE_LEASES, *CHANGE_TABLES],
    "operate": [
        *REWRITE_LEDGER,
        *REMOVE_LEASES,
        *CHANGE_TABLES,
        "DELETE FROM reltask.Runs",
        "DELETE FROM reltask.Workers",
    ],
    "enqueue": [*LOOK, *REWRITE_LEDGER, *REMOVE_LEASES, *CHANGE_TABLES, *CHANGE, "SELECT Args FROM reltask.Jobs"],
    "read": [*REWRITE_LEDGER, *REMOVE_LEASES, *CHANGE_TABLES, *CHANGE],
}

Url = Callable[[str], str]


@pytest.fixture
def url_mssql(mssql_url: str) -> Iterator[Url]:
    """The database with its roles, the script run twice.

    Call it with a role to get that user's URL.
    """
    names = {role: f"reltask_{role}_{uuid4().hex[:8]}" for role in ROLES}
    password = f"aA1-{secrets.token_hex(16)}"
    with closing(open_connection(mssql_url)) as connection:
        for _ in range(2):
            run(connection, dict(schema_scripts("mssql"))["permissions.sql"])
        for role, name in names.items():
            run(connection, f"CREATE LOGIN {name} WITH PASSWORD = '{password}'")
            run(connection, f"CREATE USER {name} FOR LOGIN {name}")
            run(connection, f"ALTER ROLE reltask_{role} ADD MEMBER {name}")
        parts = urlsplit(mssql_url)
        where = parts.netloc.rpartition("@")[2]
        yield lambda role: urlunsplit(parts._replace(netloc=f"{names[role]}:{password}@{where}"))
        for name in names.values():
            with suppress(Exception):  # a server that still has their session keeps them
                run(connection, f"DROP USER {name}")
                run(connection, f"DROP LOGIN {name}")


def store_of(url: str) -> Any:
    from reltask.stores.mssql.store import MssqlStore  # noqa: PLC0415 - the driver is an extra

    return MssqlStore(url)


@pytest.mark.parametrize("role", ROLES)
def test_mssql_role_cannot_do_more_than_its_work(url_mssql: Url, role: str) -> None:
    """Each forbidden statement is refused."""
    with closing(open_connection(url_mssql(role))) as connection:
        for statement in FORBIDDEN[role]:
            with pytest.raises(Exception, match=r"(?i)permission|must be owner"):
                run(connection, statement)


async def test_mssql_worker_role(url_mssql: Url) -> None:
    """All verbs of the protocol, of leases and of maintenance work under reltask_run."""
    async with role_work.opened(store_of(url_mssql("run"))) as store:
        await role_work.work(store)
        await role_work.lead(store)


async def test_mssql_operators_role(url_mssql: Url) -> None:
    """All verbs of operators work under reltask_operate."""
    async with role_work.opened(store_of(url_mssql("run"))) as store:
        job = await role_work.dead_job(store)
        assert (await store.acquire_lease(role_work.LEASE)).term == 1
    async with role_work.opened(store_of(url_mssql("operate"))) as store:
        await role_work.operate(store, job)


async def test_mssql_roles_of_durable_functions(url_mssql: Url) -> None:
    """All verbs of durable functions work under reltask_run, and an operator makes their steps run again."""
    async with role_work.opened(store_of(url_mssql("run"))) as store:
        job = await role_work.work_durably(store)
    async with role_work.opened(store_of(url_mssql("operate"))) as store:
        await role_work.forget(store, job)


async def test_mssql_enqueue_role(url_mssql: Url) -> None:
    """Enqueueing works under reltask_enqueue, alone and in bulk; nothing else does."""
    async with role_work.opened(store_of(url_mssql("enqueue"))) as store:
        await role_work.enqueue(store)
        sent = NewSignal(id="1", name="go", value="1", task="t", key="once")
        assert list(await store.send_signals([sent])) == ["1"]


async def test_mssql_read_role(url_mssql: Url) -> None:
    """All reading verbs work under reltask_read; enqueueing does not."""
    job = NewJob(id=uuid4(), task="t")
    async with role_work.opened(store_of(url_mssql("run"))) as store:
        await store.enqueue_jobs([job])
    async with role_work.opened(store_of(url_mssql("read"))) as store:
        await role_work.read(store, job)
