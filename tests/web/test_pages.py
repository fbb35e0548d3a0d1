"""What pages say, to the letter: over HTTP, on one database."""

# ruff: noqa: ARG001 - a test asks for the busy system by its fixture's name

from __future__ import annotations

import asyncio
import html
import re

import httpx
import pytest

from reltask import App
from tests.web.busy import Busy
from tests.web.conftest import Client
from tests.web.test_security import retry


@pytest.fixture
def url(tmp_path: object) -> str:
    """The pages are the same on every database."""
    return f"sqlite:///{tmp_path}/shop.db"


def words(page: httpx.Response) -> str:
    """The page's text, without its tags."""
    assert page.status_code == 200
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", page.text)).split())


async def test_a_confirmation_says_of_which_tasks(client: Client, app: App, busy: Busy) -> None:
    """Names as they are written, each with its number: "Cancel 78 jobs?" alone does not say what is lost."""
    await app.task(name="Charge-VISA")(_nothing).enqueue()
    viewer = client(local="act")
    page = words(await viewer.get("/confirm?action=cancel&state=due&queue=default"))
    assert "Cancel 26 jobs?" in page
    assert "25 of resize_image, 1 of Charge-VISA" in page
    page = words(await viewer.get("/confirm?action=cancel&state=due&task=Charge-VISA"))
    assert "Jobs with state due, task Charge-VISA." in page


async def _nothing() -> None:
    """A body: nothing runs here."""


async def test_the_button_that_destroys_is_not_the_one_that_enter_presses(client: Client, busy: Busy) -> None:
    """A second Enter after "Cancel all…" confirms nothing; one after "Retry all…" does."""
    viewer = client(local="act")
    cancel = (await viewer.get("/confirm?action=cancel&state=due")).text
    assert re.findall(r"<(\w+)[^>]* autofocus", cancel) == ["a"]
    retry = (await viewer.get("/confirm?action=retry&state=dead")).text
    assert re.findall(r"<(\w+)[^>]* autofocus", retry) == ["button"]


async def test_a_job_that_is_due_cannot_be_made_due(client: Client, busy: Busy) -> None:
    """Run now is offered where it changes something: to jobs that wait for their time, a signal or a person."""
    viewer = client(local="act")
    for job, offered in ((busy.due[5], False), (busy.schedule, True), (busy.suspended, True), (busy.paused, True)):
        page = (await viewer.get(f"/jobs/{job}")).text
        assert ('value="run"' in page) is offered, job
        assert ("reltask jobs run " in page) is offered, job


async def test_the_log_leads_to_the_job(client: Client, busy: Busy) -> None:
    """An action on one job names it by its id, which is a link."""
    viewer = client(local="act")
    await retry(viewer, busy)
    page = (await viewer.get("/actions")).text
    assert f'<a href="jobs/{busy.dead[0]}">{busy.dead[0]}</a>' in page


async def test_a_pause_prints_its_command(client: Client, app: App, busy: Busy) -> None:
    """Beside the form that pauses, and beside the button that resumes, of queues and of tasks."""
    viewer = client(local="act", reference="shop:app")
    assert "reltask queues pause mail --app shop:app" in words(await viewer.get("/queues"))
    tasks = words(await viewer.get("/tasks"))
    assert "reltask tasks pause charge_card --app shop:app" in tasks
    assert "reltask tasks resume nightly_report --app shop:app" in tasks


async def test_a_list_says_what_keeps_its_jobs_waiting(client: Client, busy: Busy) -> None:
    """A list of one queue or task, as the overview leads to it, repeats the sentence and its remedy."""
    viewer = client(reference="shop:app")
    page = words(await viewer.get("/jobs?state=due&queue=reports"))
    assert "sync_customer: 25 jobs due for 3 min in queue reports, where no live worker takes them." in page
    assert "reltask worker shop:app --queues reports" in page
    for other in ("/jobs?state=due&queue=payments", "/jobs?state=later&queue=reports", "/jobs?state=due"):
        assert "no live worker takes them" not in words(await viewer.get(other)), other


async def test_a_schedule_says_that_its_task_is_paused(client: Client, busy: Busy) -> None:
    """Its next times are not kept: the page says by whom and why, and how to go on."""
    page = words(await client(reference="shop:app").get("/schedules"))
    assert "later task paused" in page
    assert re.search(r"Task nightly_report was paused .* by ada: month end\.", page)
    assert "reltask tasks resume nightly_report --app shop:app" in page
    assert page.count("task paused") == 1


async def test_one_read_serves_all_viewers(app: App, busy: Busy) -> None:
    """Fifty open overviews see the same frames, and cost the database one read in a period; nobody's costs nothing."""
    live, loop = app.dashboard().live, asyncio.get_running_loop()
    live.period = 0.05
    viewers = [live.events() for _ in range(50)]
    for viewer in viewers:
        assert await anext(viewer) == b"retry: 3000\n\n"
    started = loop.time()
    while loop.time() < started + 3 * live.period:
        frames = await asyncio.gather(*(anext(viewer) for viewer in viewers))
        assert len(set(frames)) == 1
    assert live.reads <= (loop.time() - started) / live.period + 1
    for viewer in viewers:
        await viewer.aclose()
    assert live._task is None


async def test_a_stream_ends_by_itself(app: App, busy: Busy) -> None:
    """A server that shuts down waits for its open answers; the page opens the next stream when it is asked to."""
    live = app.dashboard().live
    live.period = 0.001
    frames = [frame async for frame in live.events()]
    assert len(frames) == 12
    assert frames[-1] == b'event: again\ndata: ""\n\n'
    assert live._task is None


async def test_advice_names_the_app(client: Client, app: App, busy: Busy) -> None:
    """A command within a sentence can be pasted as it stands, like those below the page."""
    page = words(await client(reference="shop:app").get(f"/jobs/{busy.limited}"))
    assert "reltask limits change bank --running N --app shop:app" in page
