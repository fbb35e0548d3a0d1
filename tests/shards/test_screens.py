"""The dashboard's lists, its first page and the metrics of several shards, as one system."""

from __future__ import annotations

import httpx
import pytest

from reltask import App, State
from reltask.model.screens import ListedState
from reltask.telemetry.prometheus import write_overview
from tests.shards.conftest import SHARDS, System
from tests.shards.gate import Gate
from tests.shards.test_away import AWAY, counting, gate, gated, on  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Databases of their own, where one of them is to be away."""
    return "postgres databases" if "gated" in request.fixturenames else "sqlite files"


async def dies(app: App, shards: list[int]) -> list[str | None]:
    """One dead letter on each of these shards, in this order; their keys."""

    @app.task(max_attempts=1)
    async def bad() -> None:
        raise ValueError

    keys = [on(shard, 1)[0] for shard in shards]
    for key in keys:
        await bad.using(key=key).enqueue()
        async with app.worker() as worker:
            await worker.drained()
    return list(keys)


async def test_dead_letters_of_all_shards_are_listed_newest_first(system: System) -> None:
    """Whatever the number on each; the next page goes on where the first ends."""
    app = system.app()
    keys = await dies(app, [2, 0, 1])
    first = await app._client.run(lambda store: store.page_jobs(ListedState.DEAD, limit=2), name="page")
    rest = await app._client.run(
        lambda store: store.page_jobs(ListedState.DEAD, after=first.next, limit=2), name="page"
    )
    assert [row.job.key for row in [*first.rows, *rest.rows]] == keys[::-1]
    assert rest.next is None


async def test_every_screen_shows_all_shards(system: System) -> None:
    """A dead letter of each shard is on the page of dead letters and has its own page, where it is retried."""
    app = system.app()
    await dies(app, [0, 1, 2])
    dead = await app.jobs(state=State.DEAD)
    transport = httpx.ASGITransport(app._make_dashboard(None, local="act"), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/", "/jobs?state=dead", "/tasks", "/queues", "/schedules", "/workers", "/leases", "/metrics"):
            assert (await client.get(path)).status_code == 200, path
        listed = (await client.get("/dead")).text
        assert all(str(job.id)[-12:] in listed for job in dead)
        for job in dead:
            assert f"jobs show {job.id}" in (await client.get(f"/jobs/{job.id}")).text
            form = {"token": client.cookies["reltask_token"], "action": "retry", "job": f"{job.id}:{job.fence}"}
            answer = await client.post("/act", data=form)
            assert "changed=1" in answer.headers["location"]
        assert (await client.get("/actions")).text.count(">retry<") == SHARDS
    assert await app.jobs(state=State.DEAD) == []


async def test_a_shard_that_is_away_is_named(gated: System, gate: Gate) -> None:  # noqa: F811 - the fixtures
    """The first page and the metrics count the others, and say which one does not answer."""
    app = gated.app()
    work = counting(app)
    for shard in range(SHARDS):
        await work.using(key=on(shard, 1)[0]).enqueue(1)
    assert (await app.overview()).due.jobs == SHARDS
    await gate.close()
    overview = await app.overview()
    assert (overview.away, overview.due.jobs) == ([AWAY], SHARDS - 1)
    metrics = write_overview(overview).decode()
    assert "reltask_up 0.0" in metrics
    assert f'reltask_jobs{{queue="default",state="due"}} {SHARDS - 1}.0' in metrics
    transport = httpx.ASGITransport(app.dashboard(), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = await client.get("/")
    assert page.status_code == 200
    assert f"Shard {AWAY} does not answer" in page.text
