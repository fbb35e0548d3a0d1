"""Who may look, who may act, and what the answers forbid a browser to do."""

# ruff: noqa: ARG001 - a test asks for the busy system by its fixture's name

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
from starlette.requests import Request

from reltask import App, Hidden, Limit
from reltask.model.control import Pause, PauseKind
from reltask.model.durable import NewSignal, Recording, StepKind, StepRecord, StepState
from reltask.model.job import Failure, NewJob, Suspension
from reltask.model.lease import Grant, LeaseRequest, Term
from reltask.model.screens import ListedState, NewAction
from reltask.stores.store import Store
from reltask.web.dashboard import LIVE_PARTS, Dashboard
from tests.web.busy import Busy, claim, record
from tests.web.conftest import ONE_DATABASE, Client

SCREENS = ["/", "/jobs", "/tasks", "/queues", "/schedules", "/dead", "/workers", "/leases", "/actions"]


async def token_of(client: httpx.AsyncClient) -> str:
    """The token of the client's cookie, as a page prints it."""
    await client.get("/jobs")
    return client.cookies["reltask_token"]


async def retry(client: httpx.AsyncClient, busy: Busy, *, fence: int = 1, **changes: Any) -> httpx.Response:
    """Ask for a retry of a dead job, as the page's form does."""
    fields = {"token": await token_of(client), "action": "retry", "job": f"{busy.dead[0]}:{fence}", "back": "dead"}
    headers = {"origin": "http://localhost", "sec-fetch-site": "same-origin", **changes.pop("headers", {})}
    return await client.post("/act", data={**fields, **changes}, headers=headers)


async def is_dead(app: App, job_id: object) -> bool:
    view = await app.job(job_id).view()  # type: ignore[arg-type]
    return view is not None and view.state == "dead"


# Looking


@ONE_DATABASE
async def test_every_answer_has_the_headers(client: Client, busy: Busy) -> None:
    """No inline script, no frames, no other host; the cookie of the token cannot be read or sent by another site."""
    for path in SCREENS:
        answer = await client().get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert re.search(r"reltask_token=.+; HttpOnly; SameSite=Strict", answer.headers["set-cookie"]), path
        assert not re.search(r"<script>|\son\w+=|\sstyle=|javascript:|https?://(?!localhost)", answer.text), path


@ONE_DATABASE
async def test_without_authorize_only_this_machine_may_look(client: Client, busy: Busy) -> None:
    """Not another machine, not through a proxy, not a website whose name points here."""
    others: list[tuple[str, dict[str, str]]] = [
        ("10.0.0.7", {}),
        ("127.0.0.1", {"host": "evil.example"}),
        ("127.0.0.1", {"x-forwarded-for": "10.0.0.7"}),
        ("127.0.0.1", {"forwarded": "for=10.0.0.7"}),
    ]
    for peer, headers in others:
        answer = await client(peer=peer).get("/", headers=headers)
        assert answer.status_code == 403, (peer, headers)
        assert "authorize" in answer.text
        assert "send_welcome" not in answer.text


@ONE_DATABASE
async def test_authorize_decides(client: Client, busy: Busy) -> None:
    """A function or a coroutine function; None refuses; an answer that means nothing is an error, not a permission."""

    async def later(request: Request) -> Any:
        return "read" if request.headers.get("x-user") == "ada" else None

    assert (await client(later, peer="10.0.0.7").get("/", headers={"x-user": "ada"})).status_code == 200
    assert (await client(later).get("/")).status_code == 403
    assert (await client(lambda _request: "admin").get("/")).status_code == 500


# Acting


async def test_an_action_is_done_and_recorded(client: Client, app: App, busy: Busy) -> None:
    """With the fence that the page showed; who, what, when and which fence are in the log."""
    allowed = client(lambda _request: ("act", "ada"), peer="10.0.0.7")
    answer = await retry(allowed, busy)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/dead?did=Retry&changed=1&asked=1"
    assert not await is_dead(app, busy.dead[0])
    page = await allowed.get("/actions")
    assert "ada" in page.text
    assert "fence 1" in page.text
    assert str(busy.dead[0]) in page.text


async def test_a_page_that_is_old_cannot_act_on_a_newer_run(client: Client, app: App, busy: Busy) -> None:
    """Another fence: nothing is changed, and both the page and the log say so."""
    allowed = client(local="act")
    answer = await retry(allowed, busy, fence=2)
    assert "changed=0" in answer.headers["location"]
    assert await is_dead(app, busy.dead[0])
    said = await allowed.get(answer.headers["location"])
    assert "nothing was changed" in said.text
    assert "left as they were" in (await allowed.get("/actions")).text


async def test_who_may_only_look_cannot_act(client: Client, app: App, busy: Busy) -> None:
    """Neither by a form, nor does any page offer one; the default is to look."""
    for looking in (client(), client(lambda _request: "read")):
        assert (await retry(looking, busy)).status_code == 403
        assert (await looking.get("/confirm?action=retry&state=dead")).status_code == 403
        assert 'action="act"' not in (await looking.get(f"/jobs/{busy.dead[0]}")).text.replace('class="inline"', "")
    assert await is_dead(app, busy.dead[0])


FORGERIES: list[dict[str, Any]] = [
    {"token": ""},
    {"token": "guessed"},
    {"headers": {"sec-fetch-site": "cross-site"}},
    {"headers": {"sec-fetch-site": "same-site"}},
    {"headers": {"sec-fetch-site": "none"}},
    {"headers": {"origin": "http://evil.example"}},
    {"headers": {"origin": "null"}},
]


async def test_another_site_cannot_act(client: Client, app: App, busy: Busy) -> None:
    """A token that the browser does not have, or a request that another site began, changes nothing."""
    viewer = client(local="act")
    for forgery in FORGERIES:
        assert (await retry(viewer, busy, **forgery)).status_code == 403, forgery
        assert await is_dead(app, busy.dead[0]), forgery
    behind_a_proxy = await retry(viewer, busy, headers={"host": "localhost:8321"})
    assert "a proxy changed its Host header" in behind_a_proxy.text
    assert (await retry(viewer, busy)).status_code == 303


@ONE_DATABASE
async def test_nothing_is_changed_by_looking(client: Client, app: App, busy: Busy) -> None:
    """GET of the address of actions is refused."""
    allowed = client(local="act")
    assert (await allowed.get(f"/act?action=retry&job={busy.dead[0]}:1")).status_code == 405
    assert await is_dead(app, busy.dead[0])


@ONE_DATABASE
async def test_an_action_leads_back_to_this_dashboard_only(client: Client, busy: Busy) -> None:
    """A form cannot send the browser elsewhere."""
    for back in ("//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example"):
        answer = await retry(client(local="act"), busy, back=back)
        assert answer.headers["location"].startswith("/?did="), back


@ONE_DATABASE
async def test_what_a_page_says_after_an_action_cannot_be_made_up(client: Client, busy: Busy) -> None:
    """A link with another text in it says nothing."""
    page = await client().get("/dead?did=Call+0900+12345&changed=1&asked=1")
    assert "0900" not in page.text


@ONE_DATABASE
async def test_values_are_masked(client: Client, app: App, busy: Busy) -> None:
    """Arguments, steps and signals: names stay, values do not, unless the app says so."""
    path = f"/jobs/{busy.suspended}"
    page = (await client().get(path)).text
    assert '"order": "•••"' in page.replace("&#34;", '"')
    for secret in ("R-93", "hello"):
        assert secret not in page
    full = (await client(show_values=True).get(path)).text
    assert "R-93" in full
    assert "hello" in full


@ONE_DATABASE
async def test_hidden_values_are_never_shown(client: Client, app: App) -> None:
    """What a type hides stays hidden with `show_values`: an argument, and what the task returned."""

    @app.task
    async def login(user: str, password: Annotated[str, Hidden]) -> Annotated[str, Hidden]:
        return f"token of {user}"

    @app.task
    async def greet(user: str) -> str:
        return f"hello {user}"

    jobs = [await login.enqueue("ada", "correct horse"), await greet.enqueue("bob")]
    async with app.worker() as worker:
        await worker.drained()
    viewer = client(show_values=True)
    secret, plain = [(await viewer.get(f"/jobs/{job.id}")).text for job in jobs]
    assert "ada" in secret
    assert "correct horse" not in secret
    assert "token of" not in secret
    assert "hello bob" in plain


# Text from the database

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e{{7*7}}"
EVIL_LIMIT = "<script>alert(1)</script>"
CONTROLS = "\x07\x1b[31m\x9b1m\r\x7f"
"""In columns that take any text; the names of jobs, tasks and queues refuse them."""


async def fill_with_texts(store: Store, text: str = EVIL, limit: str = EVIL_LIMIT) -> list[UUID]:
    """A system whose every text is this: a dead letter, a suspended function, and two that wait."""
    worker = record("host", app_version=text, host=text, version=text, queues=[text], tasks=[text])
    await store.register_worker(worker)
    error = f"Error: {text}{CONTROLS}"
    value = json.dumps({text: text + CONTROLS})
    dead = NewJob(id=uuid4(), task=text, queue=text, key=text, max_attempts=1, args=value, headers=value)
    durable = NewJob(id=uuid4(), task=text, queue=text, key=text + "1", args=value)
    await store.enqueue_jobs([dead])
    (held,) = await claim(store, worker.id, text, text)
    await store.fail_jobs(worker.id, [Failure(hold=held.hold, error=error, delay=timedelta(0))])
    await store.enqueue_jobs([durable])
    (held,) = await claim(store, worker.id, text, text)
    await store.record_progress(worker.id, held.hold, value)
    now = datetime.now(UTC)
    steps = (
        StepRecord(name=text, kind=StepKind.STEP, state=StepState.DONE, started_at=now, value=value),
        StepRecord(name=text + "f", kind=StepKind.STEP, state=StepState.FAILED, started_at=now, error=error),
        StepRecord(name=text + "w", kind=StepKind.WAIT, state=StepState.WAITING, started_at=now, signal=text),
    )
    await store.record_steps(worker.id, [Recording(hold=held.hold, steps=steps)])
    await store.suspend_jobs(worker.id, [Suspension(hold=held.hold, seen=0, wake_at=now + timedelta(days=2))])
    await store.send_signals([NewSignal(id=text, name=text, value=value, job_id=durable.id)])
    rule = Limit(limit, running=1)
    assert await store.write_limit(rule.rule(limit), seen=None)
    limited = NewJob(id=uuid4(), task=text, queue=text, key=text + "3", limits=(limit,))
    due = NewJob(id=uuid4(), task=text, queue=text, key=text + "2", schedule='{"every":"1m"}')
    await store.enqueue_jobs([due, limited])
    await store.add_pause(Pause(kind=PauseKind.QUEUE, name=text, reason=text, paused_by=text))
    request = LeaseRequest(name=text, holder=text, acquisition=uuid4(), ttl=timedelta(minutes=30))
    answer = await store.acquire_lease(request)
    assert answer.term is not None
    grant = Grant(term=Term(text, answer.term), acquisition=request.acquisition)
    await store.heartbeat_lease(grant, metadata=json.dumps({"items": text, "errors": text, "last_run": text}))
    action = NewAction(id=uuid4(), actor=text, action=text, target=text * 3, seen=text)
    await store.record_action(action)
    await store.end_action(action.id, outcome=text, changed=0)
    return [dead.id, durable.id, due.id, limited.id]


async def test_every_text_is_escaped(client: Client, app: App) -> None:
    """HTML and control characters in every column are shown, not obeyed; so are characters that reorder text."""
    jobs = await app._client.run(fill_with_texts, name="fill")
    viewer = client(local="act", show_values=True)
    lists = [f"/jobs?state={state}" for state in ListedState]
    shown = [*SCREENS, *lists, *(f"/jobs/{job_id}" for job_id in jobs), "/confirm?action=retry&state=dead"]
    for path in [*shown, f"/jobs?q={quote(EVIL)}", f"/dead?task={quote(EVIL)}", f"/jobs?queue={quote(EVIL)}"]:
        page = (await viewer.get(path)).text
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path
        assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page), path
    assert "&lt;script&gt;" in (await viewer.get("/dead")).text
    assert "\\u001b[31m" in (await viewer.get(f"/jobs/{jobs[0]}")).text


@ONE_DATABASE
async def test_the_stream_is_escaped(client: Client, app: App) -> None:
    """What a browser puts into the page is escaped; names that it only compares are JSON; no text ends an event."""
    await app._client.run(fill_with_texts, name="fill")
    dashboard = app.dashboard()
    frame = (await dashboard.live._frame()).decode()
    fragments = dict(re.findall(r"event: (\w+)\ndata: (.+)\n", frame))
    assert set(LIVE_PARTS) < fragments.keys()
    for name in LIVE_PARTS:
        assert "&lt;script&gt;" in fragments[name] or name == "numbers"
        assert "<script>alert" not in fragments[name]
        assert "<img src=x" not in fragments[name]
    assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", frame)
    assert {line.partition(":")[0] for line in frame.splitlines() if line} == {"event", "data"}


# Mounting


@ONE_DATABASE
async def test_it_works_below_a_path(client: Client, app: App, busy: Busy) -> None:
    """Links, forms, the cookie and what follows an action stay below the path."""
    mounted = client(root="/ops/reltask", local="act")
    page = await mounted.get("/jobs")
    assert '<base href="/ops/reltask/">' in page.text
    assert "Path=/ops/reltask/" in page.headers["set-cookie"]
    fields = {"token": mounted.cookies["reltask_token"], "action": "retry", "job": f"{busy.dead[0]}:1", "back": "dead"}
    answer = await mounted.post("/act", data=fields)
    assert answer.headers["location"].startswith("/ops/reltask/dead?")
    assert not re.findall(r'(?:href|src|action)="/(?!ops/reltask/)', page.text)


def wsgi_get(dashboard: Dashboard, path: str, *, root: str = "", **environ: str) -> tuple[str, str]:
    """One request of a WSGI server."""
    import io  # noqa: PLC0415

    started: list[str] = []
    given = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": root,
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "localhost",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        **environ,
    }
    body = b"".join(dashboard.wsgi(given, lambda status, _headers: started.append(status)))
    return started[0], body.decode()


@ONE_DATABASE
def test_the_wsgi_form_shows_the_same_pages(app: App, busy: Busy) -> None:
    """Below any path, and without the stream: it would keep a thread of the server for each viewer."""
    dashboard = app.dashboard()
    status, page = wsgi_get(dashboard, "/dead", root="/ops")
    assert status == "200 OK"
    assert "ConnectionError" in page
    assert '<base href="/ops/">' in page
    assert 'data-streams="no"' in page
    assert wsgi_get(dashboard, "/live")[0] == "204 No Content"
    assert wsgi_get(dashboard, "/", REMOTE_ADDR="10.0.0.7")[0] == "403 Forbidden"
