"""The actions, each with its effect read back from the database."""

# ruff: noqa: ARG001 - a test asks for the busy system by its fixture's name

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from reltask import App, Limit, State
from reltask.model.job import Failure, NewJob
from reltask.stores.store import Store
from tests.web.busy import Busy, claim
from tests.web.conftest import ONE_DATABASE, Client
from tests.web.test_security import token_of


async def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    """Send a form of the dashboard."""
    return await client.post("/act", data={"token": await token_of(client), "back": "jobs", **fields})


async def state(app: App, job_id: Any) -> State | None:
    view = await app.job(job_id).view()
    return None if view is None else view.state


async def test_run_now(client: Client, app: App, busy: Busy) -> None:
    """A job that is due later is due at once."""
    before = await app.job(busy.schedule).view()
    assert before is not None
    await post(client(local="act"), action="run", job=f"{busy.schedule}:0")
    after = await app.job(busy.schedule).view()
    assert after is not None
    assert after.due_at < before.due_at
    assert after.next_run_time == before.next_run_time


async def test_pause_and_resume_a_job(client: Client, app: App, busy: Busy) -> None:
    """It is not claimed in between."""
    viewer = client(local="act")
    job = f"{busy.due[0]}:0"
    await post(viewer, action="pause", job=job)
    assert await state(app, busy.due[0]) is State.PAUSED
    await post(viewer, action="resume", job=job)
    assert await state(app, busy.due[0]) is State.READY


@pytest.mark.parametrize(("kind", "name"), [("queue", "mail"), ("task", "resize_image")])
async def test_pause_and_resume_a_queue_or_a_task(client: Client, app: App, busy: Busy, kind: str, name: str) -> None:
    """With a reason that others see; by whom is the viewer's name."""
    viewer = client(lambda _request: ("act", "ada"))
    await post(viewer, action="pause", kind=kind, name=name, reason="provider is down")
    found = [pause for pause in await app.pauses() if pause.name == name]
    assert [(pause.reason, pause.paused_by) for pause in found] == [("provider is down", "ada")]
    page = await viewer.get(f"/{kind}s")
    assert "provider is down" in page.text
    assert "provider is down" in (await viewer.get("/")).text
    await post(viewer, action="resume", kind=kind, name=name)
    assert [pause for pause in await app.pauses() if pause.name == name] == []


async def test_signal(client: Client, app: App, busy: Busy) -> None:
    """The value is JSON; the function's signals have it; an old page sends nothing; an ended job is offered none."""
    viewer = client(local="act")
    await post(viewer, action="signal", job=f"{busy.suspended}:1", signal="approved", value='{"by": "ada"}')
    assert [(one.name, one.value) for one in await app.job(busy.suspended).signals() if one.name == "approved"] == [
        ("approved", '{"by":"ada"}')
    ]
    await post(viewer, action="signal", job=f"{busy.suspended}:7", signal="approved", value="1")
    assert len([one for one in await app.job(busy.suspended).signals() if one.name == "approved"]) == 1
    assert (await post(viewer, action="signal", job=f"{busy.suspended}:1", signal="x", value="{")).status_code == 400
    offer = '<select name="signal">'
    assert offer in (await viewer.get(f"/jobs/{busy.suspended}")).text
    await post(viewer, action="cancel", job=f"{busy.suspended}:1")
    page = (await viewer.get(f"/jobs/{busy.suspended}")).text
    assert (offer in page, ": over" in page) == (False, True)


async def test_retry_all_with_one_error(client: Client, app: App, busy: Busy) -> None:
    """The exact number is confirmed; others with another error stay dead."""
    viewer = client(local="act")
    error = "ConnectionError: mail server answered N for '…'"
    query = {"action": "retry", "state": "dead", "task": "send_welcome", "error": error}
    page = await viewer.get("/confirm", params=query)
    assert "Retry 7 jobs" in page.text
    answer = await post(viewer, **form_of(page.text), **query)
    assert "changed=7" in answer.headers["location"]
    assert [job.task for job in await app.jobs(state=State.DEAD)] == ["charge_card", "charge_card"]
    log = (await viewer.get("/actions")).text
    assert all(f"{job_id}:1" in log for job_id in busy.dead)


def form_of(page: str) -> dict[str, str]:
    """The jobs that a confirmation names."""
    found = re.search(r'name="jobs" value="([^"]+)"', page)
    assert found
    return {"jobs": found[1]}


async def test_only_what_was_confirmed_is_changed(client: Client, app: App, busy: Busy) -> None:
    """A job that died after the page was shown stays dead, and so does one that has run again since."""
    viewer = client(local="act")
    query = {"action": "retry", "state": "dead", "task": "send_welcome"}
    page = await viewer.get("/confirm", params=query)
    newer = await app._client.run(lambda store: _die_again(store, busy.dead[0]), name="die")
    answer = await post(viewer, **form_of(page.text), **query)
    assert "changed=6&asked=7" in answer.headers["location"]
    dead = {job.id for job in await app.jobs(state=State.DEAD, task="send_welcome")}
    assert dead == {busy.dead[0], newer}


async def _die_again(store: Store, job_id: UUID) -> UUID:
    """Retry a dead letter until it is dead again, beside a new one."""
    await store.retry_job(job_id)
    new = NewJob(id=uuid4(), task="send_welcome", queue="mail", max_attempts=1)
    await store.enqueue_jobs([new])
    held = await claim(store, "w", "send_welcome", "mail", limit=100)
    dying = [one for one in held if one.job_id in (job_id, new.id)]
    while dying:  # a retried job may have more attempts
        await store.fail_jobs("w", [Failure(hold=one.hold, error="E", delay=timedelta(0)) for one in dying])
        held = await claim(store, "w", "send_welcome", "mail", limit=100)
        dying = [one for one in held if one.job_id in (job_id, new.id)]
    return new.id


@ONE_DATABASE
async def test_a_search_offers_no_action_on_all(client: Client, busy: Busy) -> None:
    """The jobs that were found are in any state: each is shown in its own, and "all" would mean another list."""
    page = (await client(local="act").get("/jobs?q=order-1187")).text
    assert "confirm?" not in page
    assert "suspended</span></td>" in page
    assert "reltask jobs list MODULE:app --key order-1187" in page


async def test_run_again_waits_for_its_limit(client: Client, app: App) -> None:
    """A job that is run again counts to the limits of its task, as the first did."""

    @app.task(limit=Limit("bank", running=1))
    async def pay() -> None: ...

    job = await pay.enqueue()
    async with app.worker() as worker:
        await worker.drained()
    (run,) = await app.runs(job_id=job.id)
    answer = await post(client(local="act"), action="again", job=f"{job.id}:{run.fence}")
    assert "changed=1" in answer.headers["location"]
    (again,) = await app.jobs(task="pay")
    limits = await app._client.run(lambda store: store.read_job_limits(again.id), name="limits")
    assert [limit.key for limit in limits] == ["bank"]


async def test_chosen_jobs(client: Client, app: App, busy: Busy) -> None:
    """Those that were chosen, each with its fence; one that has changed is left, and the answer says how many."""
    viewer = client(local="act")
    chosen = [f"{busy.due[0]}:0", f"{busy.due[1]}:0", f"{busy.due[2]}:5"]
    answer = await post(viewer, action="pause", job=chosen)
    assert "changed=2&asked=3" in answer.headers["location"]
    assert [await state(app, job_id) for job_id in busy.due[:3]] == [State.PAUSED, State.PAUSED, State.READY]


@ONE_DATABASE
async def test_a_form_that_makes_no_sense_is_refused(client: Client, app: App, busy: Busy) -> None:
    """With a sentence, and nothing is changed or recorded."""
    viewer = client(local="act")
    for fields in (
        {"action": "explode", "job": "x:1"},
        {"action": "retry"},
        {"action": "retry", "job": "not-an-id:1"},
        {"action": "pause", "kind": "planet", "name": "mail"},
        {"action": "retry", "jobs": f"{'0' * 32}-1", "state": "due"},
        {"action": "retry", "jobs": "x-1.-.1-2", "state": "dead"},
        {"action": "signal", "job": "x"},
    ):
        assert (await post(viewer, **fields)).status_code == 400, fields
    async with app.producer():
        assert await app._client.run(lambda store: store.list_actions(), name="actions") == []


async def test_cancel(client: Client, app: App, busy: Busy) -> None:
    """A waiting job is gone; a running one is being stopped; one that runs again since is left alone."""
    viewer = client(local="act")
    await post(viewer, action="cancel", job=f"{busy.due[0]}:0")
    assert await state(app, busy.due[0]) is None
    answer = await post(viewer, action="cancel", job=f"{busy.running[0]}:1")
    assert "changed=1" in answer.headers["location"]
    answer = await post(viewer, action="cancel", job=f"{busy.running[1]}:2")
    assert "changed=0" in answer.headers["location"]


async def test_run_again(client: Client, app: App, busy: Busy) -> None:
    """An ended one-off is enqueued again with what it was given, as a new job."""
    ended = next(run for run in await app.runs(task="sync_customer") if run.outcome == "succeeded")
    before = len([job for job in await app.jobs(limit=500) if job.task == "sync_customer"])
    answer = await post(client(local="act"), action="again", job=f"{ended.job_id}:{ended.fence}")
    kept = await app._client.run(lambda store: store.read_payload(ended.job_id), name="payload")
    after = len([job for job in await app.jobs(limit=500) if job.task == "sync_customer"])
    assert (after - before, f"changed={after - before}" in answer.headers["location"]) == (
        int(kept is not None and kept.args is not None),
        True,
    )
