"""The dashboard under the database's roles: `reltask_read` is enough to look, `reltask_operate` to act."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest

from reltask import App
from reltask.stores.migration import schema_scripts
from tests.postgres_server import PostgresServer
from tests.web.busy import Busy, shop
from tests.web.served import apart
from tests.web.test_security import SCREENS, is_dead, retry, token_of

PERMISSIONS = dict(schema_scripts("postgres"))["permissions.sql"]
LOGIN = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'web_{0}') then create role web_{0} login; end if;
    grant reltask_{0} to web_{0};
end $$
"""
Opened = Callable[[str], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def url(postgres_url: str) -> str:
    """SQLite has no roles."""
    return postgres_url


@pytest.fixture
def opened(postgres_server: PostgresServer, url: str) -> Opened:
    """A viewer who may act, of a dashboard that has a role in the database."""
    name = url.rpartition("/")[2]
    postgres_server.execute(PERMISSIONS, *(LOGIN.format(role) for role in ("read", "operate")), database=name)

    @asynccontextmanager
    async def open_as(role: str) -> AsyncIterator[httpx.AsyncClient]:
        app = shop(postgres_server.url(name, user=f"web_{role}"))
        transport = httpx.ASGITransport(app._make_dashboard(None, local="act"), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
        apart(app.close)

    return open_as


async def test_who_may_read_sees_every_screen_and_changes_nothing(opened: Opened, app: App, busy: Busy) -> None:
    """No screen needs more, and none complains that its user cannot run a worker; an action says what it lacks."""
    async with opened("read") as viewer:
        for path in [*SCREENS, f"/jobs/{busy.suspended}", f"/jobs/{busy.dead[0]}", f"/jobs/{busy.limited}"]:
            assert (await viewer.get(path)).status_code == 200, path
        assert "this user may only" not in (await viewer.get("/")).text
        answer = await retry(viewer, busy)
    assert answer.status_code == 503
    assert "permissions.sql" in answer.text
    assert await is_dead(app, busy.dead[0])


async def test_who_may_operate_acts(opened: Opened, app: App, busy: Busy) -> None:
    """A retry, a pause of a queue and a signal are done and recorded."""
    async with opened("operate") as viewer:
        await retry(viewer, busy)
        fields = {"token": await token_of(viewer)}
        pause = {**fields, "action": "pause", "kind": "queue", "name": "mail"}
        signal = {**fields, "action": "signal", "job": f"{busy.suspended}:1", "signal": "approved", "value": "true"}
        for form in (pause, signal):
            assert (await viewer.post("/act", data=form)).status_code == 303
    assert not await is_dead(app, busy.dead[0])
    assert "mail" in [pause.name for pause in await app.pauses()]
    assert "approved" in [one.name for one in await app.job(busy.suspended).signals()]
