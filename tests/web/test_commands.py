"""The commands that pages print: each runs, and does what its page does, to the same jobs."""

# ruff: noqa: ARG001 - a test asks for the busy system by its fixture's name

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable

import httpx
import pytest

from reltask import App, State
from reltask.cli import run
from reltask.model.task import Registry
from reltask.web.bulk import read_seen
from reltask.web.commands import Commands
from tests.web.busy import Busy
from tests.web.conftest import Client
from tests.web.served import apart

SCREENS = ["/", "/jobs?state=due&queue=mail", "/tasks", "/queues", "/schedules", "/dead", "/workers", "/leases"]
Run = Callable[[str], str]


@pytest.fixture
def url(tmp_path: object) -> str:
    """The commands are the same on every database."""
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line, which must succeed, and returns what it wrote."""

    def type_in(line: str) -> str:
        program, *arguments = shlex.split(line)
        assert program == "reltask"
        code = apart(lambda: run(arguments))
        written = capsys.readouterr()
        assert code == 0, f"{line}: {written.err}"
        return written.out

    return type_in


def printed(page: httpx.Response) -> list[str]:
    """The commands at the end of a page."""
    assert page.status_code == 200
    return [html.unescape(text) for text in re.findall(r'<div class="command">.*?<code>(.*?)</code>', page.text)]


async def test_every_screen_prints_a_command_that_runs(client: Client, app: App, busy: Busy, terminal: Run) -> None:
    """With the app or the database that the dashboard was started for."""
    viewer = client(local="act", reference=f"--database {app.url}")
    for path in [*SCREENS, "/actions", "/jobs?q=order-1187", "/dead?task=charge_card"]:
        commands = [line for line in printed(await viewer.get(path)) if "--watch" not in line]
        assert commands or path == "/", path
        for line in commands:
            terminal(line)
    for job_id in (busy.suspended, busy.due[3], busy.running[0], busy.paused, busy.dead[0]):
        for line in printed(await viewer.get(f"/jobs/{job_id}")):
            if "cancel" not in line:
                terminal(line)


async def test_the_command_of_a_list_lists_the_same_jobs(client: Client, app: App, busy: Busy, terminal: Run) -> None:
    """The queue, the task, and due as opposed to later."""
    viewer = client(local="act", reference=f"--database {app.url}")
    for query in ("state=due&queue=mail", "state=later&task=charge_card", "state=due&task=charge_card&queue=payments"):
        page = await viewer.get(f"/jobs?{query}")
        (line,) = printed(page)
        listed = {job["id"] for job in json.loads(terminal(f"{line} --json"))}
        assert listed == set(re.findall(r'data-href="jobs/([0-9a-f-]{36})"', page.text)) != set()


async def test_the_command_of_a_confirmation_changes_the_same_jobs(
    client: Client, app: App, busy: Busy, terminal: Run
) -> None:
    """No job more: of this task, in this queue, with this error."""
    viewer = client(local="act", reference=f"--database {app.url}")
    page = await viewer.get("/confirm?action=cancel&state=due&queue=mail")
    (line,) = printed(page)
    found = re.search(r'name="jobs" value="([^"]+)"', page.text)
    assert found
    listing, _, rest = line.partition(" | ")
    assert {job["id"] for job in json.loads(terminal(listing))} == {str(one.id) for one in read_seen(found[1])}
    assert rest == f"jq -r '.[].id' | xargs -r -n1 reltask jobs cancel --database {app.url} --yes"
    error = "ConnectionError: mail server answered N for '…'"
    query = {"action": "retry", "state": "dead", "task": "send_welcome", "error": error}
    (line,) = printed(await viewer.get("/confirm", params=query))
    assert len(terminal(line).splitlines()) == 7
    assert {job.task for job in await app.jobs(state=State.DEAD)} == {"charge_card"}


async def archive(number: int, card: str, rush: bool, weight: float, *, tags: list[str], copies: int = 1) -> None:
    """A body: nothing runs here."""


async def clean() -> None:
    """A body: nothing runs here."""


async def first_command(app: App) -> list[str]:
    """What the page of an empty system prints to enqueue a job, in words."""
    transport = httpx.ASGITransport(app._make_dashboard(None), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as viewer:
        lines = printed(await viewer.get("/"))
    return next(shlex.split(line) for line in lines if "enqueue" in line)


async def test_the_command_for_a_first_job_enqueues_one(url: str) -> None:
    """It has a value for each parameter that needs one, of a type that fits."""
    app = App(url)
    task = app.task(archive)
    *words, arguments = await first_command(app)
    assert words == ["reltask", "enqueue", "MODULE:app", "archive"]
    await task.enqueue(**json.loads(arguments))
    assert len(await app.jobs()) == 1
    apart(app.close)


async def test_the_first_job_is_of_the_simplest_task(url: str) -> None:
    """Of one that needs no arguments, and does not recur."""
    app = App(url)
    app.task(archive)
    app.task(name="burn", every="1h")(clean)
    app.task(clean)
    assert await first_command(app) == ["reltask", "enqueue", "MODULE:app", "clean"]
    apart(app.close)


def test_what_runs_code_names_an_app() -> None:
    """A worker and an enqueue need the tasks: neither takes the URL that the dashboard was started with."""
    commands = Commands("--database sqlite:///shop.db")
    assert commands.first_job(Registry()) == "reltask enqueue MODULE:app TASK"
    assert commands.worker() == "reltask worker MODULE:app"
    text = "reltask worker MODULE:app --queues mail; reltask status MODULE:app; reltask limits --app MODULE:app"
    assert commands.of(text) == (
        "reltask worker MODULE:app --queues mail; reltask status --database sqlite:///shop.db; "
        "reltask limits --database sqlite:///shop.db"
    )
    assert Commands("shop:app").of(text).startswith("reltask worker shop:app --queues mail; reltask status shop:app;")
    assert Commands("shop:app").worker() == "reltask worker shop:app"
