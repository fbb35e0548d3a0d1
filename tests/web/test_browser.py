"""The dashboard in a real browser: every screen on each database, the actions, the live parts, the keys.

The screenshots of the documentation are made here and in test_accessibility.py; they are renewed with
DASHBOARD_SCREENSHOTS=docs/images.
"""

# ruff: noqa: ARG001 - a test asks for the busy system by its fixture's name

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Route, expect

from reltask import App, State
from reltask.model.job import NewJob
from tests.web.busy import Busy, record
from tests.web.conftest import ONE_DATABASE, Serve
from tests.web.screens import SCREENS, Watched, call, path_of, photograph
from tests.web.served import apart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first one may install the browser


# Screens


def test_every_screen(watched: Watched, busy: Busy, request: pytest.FixtureRequest) -> None:
    """Each has its heading, names its command, and asks no other host for anything."""
    for name in SCREENS:
        page = watched.go(path_of(name, busy))
        expect(page.locator("h1")).to_be_visible()
        assert page.locator(".command code").count() >= 1, name
        if "sqlite" in request.node.nodeid and name != "actions":  # that page is empty here
            photograph(page, name)


@ONE_DATABASE
def test_without_javascript(browser: Browser, serve: Serve, busy: Busy, app: App) -> None:
    """Every screen shows its content, and an action works: only the live parts are missing."""
    context = browser.new_context(java_script_enabled=False)
    page, served = context.new_page(), serve(local="act")
    for name in SCREENS:
        page.goto(f"{served.url}/{path_of(name, busy)}")
        expect(page.locator("h1")).to_be_visible()
    page.goto(f"{served.url}/jobs/{busy.dead[0]}")
    page.click("button:text('Retry')")
    expect(page.locator(".said")).to_contain_text("Retry: done")
    page.goto(f"{served.url}/jobs?state=due")
    chosen = [page.locator(".rows tbody tr").nth(nth).get_attribute("data-href") for nth in (0, 3)]
    for href in chosen:
        page.check(f'tr[data-href="{href}"] input[type=checkbox]')
    page.click("button:text('Pause chosen')")
    expect(page.locator(".said")).to_contain_text("Pause: done for 2 jobs.")
    context.close()
    paused = {str(job.id) for job in apart(lambda: app.jobs_sync(state=State.PAUSED))}
    assert {str(href).removeprefix("jobs/") for href in chosen} <= paused
    view = apart(app.job(busy.dead[0]).view_sync)
    assert view is not None
    assert view.state is State.READY


# Actions


def test_retrying_all_with_one_error(watched: Watched, busy: Busy, app: App) -> None:
    """From the group of the error, over the exact number, to the database and the log."""
    page = watched.go("dead")
    page.click("text=Retry all 7 with this error…")
    expect(page.locator("h1")).to_have_text("Retry 7 jobs?")
    page.click("button:text('Retry 7 jobs')")
    expect(page.locator(".said")).to_contain_text("Retry: done for 7 jobs.")
    page.reload()
    expect(page.locator(".said")).to_have_count(0)
    assert {job.task for job in apart(lambda: app.jobs_sync(state=State.DEAD))} == {"charge_card"}
    watched.go("actions")
    expect(page.locator("tbody tr").first).to_contain_text("retry")


def test_pausing_a_queue(watched: Watched, busy: Busy, app: App) -> None:
    """With a reason; the overview says it in a sentence; resuming ends it."""
    page = watched.go("queues")
    row = page.locator("tr", has=page.locator("th", has_text="mail"))
    row.locator("summary").click()
    row.locator("input[name=reason]").fill("provider is down")
    row.locator("button[value=pause]").click()
    expect(page.locator("tr.note")).to_contain_text("provider is down")
    assert [pause.name for pause in apart(app.pauses_sync) if pause.kind == "queue"] == ["mail"]
    expect(watched.go().locator(".problems")).to_contain_text("Queue mail is paused")
    watched.go("queues")
    page.locator("button[value=resume]").first.click()
    expect(page.locator("tr.note")).to_have_count(0)
    assert [pause.name for pause in apart(app.pauses_sync) if pause.kind == "queue"] == []


def test_what_people_did_is_listed(watched: Watched, busy: Busy, app: App) -> None:
    """Each action, the latest first: who, what, to which, with which fence, and how it ended."""
    for path, button in (
        ("queues", "tr:has-text('mail') summary, tr:has-text('mail') button[value=pause]"),
        (f"jobs/{busy.schedule}", "button[value=run]"),
        (f"jobs/{busy.suspended}", "button[value=signal]"),
        (f"jobs/{busy.running[0]}", "button[value=cancel]"),
        ("confirm?action=retry&state=dead&task=charge_card", "button[value=retry]"),
    ):
        page = watched.go(path)
        for one in button.split(", "):
            page.click(one)
        expect(page.locator(".said")).to_contain_text("done")
    rows = watched.go("actions").locator("tbody tr")
    assert rows.locator("th").all_inner_texts() == ["retry", "cancel", "signal", "run now", "pause"]
    assert rows.nth(1).locator("td").all_inner_texts()[1:] == ["local", str(busy.running[0]), "fence 1", "1", "done"]
    if app.url.startswith("sqlite"):
        photograph(watched.page, "actions")


def test_signalling_a_function(watched: Watched, busy: Busy, app: App) -> None:
    """The page names the signal that it waits for."""
    page = watched.go(f"jobs/{busy.suspended}")
    expect(page.locator(".why")).to_contain_text("It waits for signal approved")
    page.fill("input[name=value]", '{"by": "ada"}')
    page.click("button:text('Send')")
    expect(page.locator(".said")).to_contain_text("Signal approved: done")
    assert "approved" in [signal.name for signal in apart(app.job(busy.suspended).signals_sync)]


def test_the_page_of_a_newer_run_is_not_touched(watched: Watched, busy: Busy, app: App) -> None:
    """A retry by another operator, a claim and a death later, the old page changes nothing."""
    from tests.web.busy import claim  # noqa: PLC0415

    page = watched.go(f"jobs/{busy.dead[0]}")
    call(app, lambda store: store.retry_job(busy.dead[0]))

    async def newer(store: Any) -> None:
        await claim(store, "another-worker", "send_welcome", "mail", limit=100)

    call(app, newer)
    page.click("button:text('Retry')")
    expect(page.locator(".said")).to_contain_text("nothing was changed")
    view = apart(app.job(busy.dead[0]).view_sync)
    assert view is not None
    assert view.fence == 2


# Limits


@ONE_DATABASE
def test_a_full_limit_is_the_reason(watched: Watched, busy: Busy) -> None:
    """The queues' page has running, cap, waiting and tokens of each limit; a waiting job's page names its full key."""
    page = watched.go("queues")
    bank = page.locator("tr", has=page.locator("th", has_text="bank")).locator("td")
    assert bank.all_inner_texts()[:4] == ["2", "2", "3", "60/1m"]
    expect(bank.nth(4)).to_contain_text("of 10")
    expect(page.locator("th", has_text="bank")).to_contain_text("full")
    why = watched.go(f"jobs/{busy.limited}").locator(".why")
    expect(why).to_contain_text("Limit bank is full: 2 of 2 running, 3 jobs wait for it.")
    expect(why).to_contain_text("reltask limits change bank")


# Live


def test_the_overview_is_live(watched: Watched, busy: Busy, app: App) -> None:
    """A change in the database is on the page within three seconds; the focus stays where it was."""
    page = watched.go()
    expect(page.locator("#live")).to_have_text("live")
    due = page.locator(".number", has_text="due").first.locator("dd")
    expect(due).to_have_text("77")
    page.focus("#zone")
    call(app, lambda store: store.enqueue_jobs([NewJob(id=uuid4(), task="resize_image") for _ in range(5)]))
    expect(due).to_have_text("82", timeout=3_000)
    expect(page.locator(".u-legend")).to_contain_text("succeeded36failed9")
    assert page.evaluate("document.activeElement.id") == "zone"


@ONE_DATABASE
def test_the_focus_is_kept_over_updates(watched: Watched, busy: Busy, app: App) -> None:
    """A part in which a link has the focus is renewed when the focus leaves it; the others at once."""
    page = watched.go()
    expect(page.locator("#live")).to_have_text("live")
    focused = page.locator("[data-live=queues] tr", has_text="payments").locator("a")
    due = page.locator("[data-live=queues] tr", has_text="default").locator("td").nth(1)
    expect(due).to_have_text("25")
    focused.focus()
    enqueue(app, watched, *["resize_image"] * 5)
    expect(page.locator(".number", has_text="due").first.locator("dd")).to_have_text("82")
    expect(focused).to_be_focused()
    expect(due).to_have_text("25")
    page.focus("#zone")
    expect(due).to_have_text("30")


@ONE_DATABASE
def test_a_page_stays_live_when_its_stream_ends(watched: Watched, busy: Busy) -> None:
    """It opens the next one at once, and does not say that it lost the connection."""
    watched.served.dashboard.live.period = 0.05
    page = watched.go()
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate(
        "said = []; new MutationObserver(() => said.push(document.querySelector('#live').textContent))"
        ".observe(document.querySelector('#live'), {childList: true, characterData: true, subtree: true})"
    )
    for _ in range(2):
        with page.expect_request("**/live"):
            pass
    expect(page.locator("#live")).to_have_text("live")
    assert page.evaluate("said.filter((text) => text !== 'live')") == []


@ONE_DATABASE
def test_only_what_is_renewed_is_called_live(watched: Watched, busy: Busy) -> None:
    """A page whose content stays as it was loaded says so, and keeps no stream open."""
    streams: list[str] = []
    watched.page.on("request", lambda request: streams.append(request.url) if request.url.endswith("/live") else None)
    for name in SCREENS:
        page = watched.go(path_of(name, busy))
        renewed = name in ("overview", "jobs")
        expect(page.locator("#live")).to_have_text("live" if renewed else "not live: press r to renew")
        assert bool(streams) is renewed, name
        streams.clear()


@ONE_DATABASE
def test_rows_do_not_move_under_the_pointer(watched: Watched, busy: Busy, app: App) -> None:
    """A list says how many are new since it was loaded, and shows them when it is asked to."""
    held: list[Route] = []
    watched.page.route("**/live", lambda route: held.append(route))  # noqa: PLW0108 - it sets attributes
    with watched.page.expect_request("**/live"):
        page = watched.go("jobs?state=due")
    before = page.locator(".rows tbody").inner_text()
    enqueue(app, watched, *["resize_image"] * 12)
    held[0].continue_()
    expect(page.locator("#fresh")).to_contain_text("12 new")
    assert page.locator(".rows tbody").inner_text() == before
    page.click("#fresh button")
    expect(page.locator("[data-count=due]")).to_have_text("89")


def enqueue(app: App, watched: Watched, *tasks: str) -> None:
    """Jobs of these tasks, which the next frame counts."""
    call(app, lambda store: store.enqueue_jobs([NewJob(id=uuid4(), task=task) for task in tasks]))
    watched.served.dashboard.live.forget()


@ONE_DATABASE
def test_a_filtered_list_counts_its_own(watched: Watched, busy: Busy, app: App) -> None:
    """Its tabs keep the filter and count what matches it; jobs of other tasks are not new to it."""
    page = watched.go("jobs?state=due")
    page.select_option("select[name=task]", "sync_customer")
    expect(page.locator("[data-count=due]")).to_have_text("25")
    expect(page.locator("[data-count=later]")).to_have_text("0")
    assert "task=sync_customer" in str(page.locator(".tabs a", has_text="Later").get_attribute("href"))
    enqueue(app, watched, *["resize_image"] * 5, *["sync_customer"] * 3)
    expect(page.locator("#fresh")).to_contain_text("3 new")
    expect(page.locator("[data-count=due]")).to_have_text("28")


@ONE_DATABASE
def test_an_empty_system_waits_for_a_worker(watched: Watched, app: App, request: pytest.FixtureRequest) -> None:
    """Two commands for a first job; the page turns live when a worker comes."""
    call(app, lambda store: store.read_now())
    page = watched.go()
    expect(page.locator(".empty")).to_contain_text("reltask worker shop:app")
    expect(page.locator(".empty")).to_contain_text("reltask enqueue shop:app charge_card")
    expect(page.locator(".waiting")).to_contain_text("Waiting for a worker…")
    if "sqlite" in request.node.nodeid:
        photograph(page, "empty")
    call(app, lambda store: store.register_worker(record("web-1")))
    expect(page.locator(".empty")).to_have_count(0)
    expect(page.locator(".verdict")).to_be_visible()


@ONE_DATABASE
def test_an_outage_is_said(watched: Watched, app: App, busy: Busy) -> None:
    """While the database does not answer, the page stays, and says so."""
    page = watched.go()
    expect(page.locator("#live")).to_have_text("live")

    async def fail() -> Any:
        from reltask.errors import TransientError  # noqa: PLC0415

        raise TransientError("gone")

    watched.served.dashboard.live._read = fail
    expect(page.locator("#live")).to_contain_text("The database does not answer")
    expect(page.locator(".number").first).to_be_visible()


# Keys and clocks


@ONE_DATABASE
def test_keys(watched: Watched, busy: Busy) -> None:
    """/ finds, j and k walk, x chooses, ? explains; none of them while a text is written."""
    page = watched.go("jobs?state=due")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.at")).to_have_count(1)
    page.keyboard.press("x")
    expect(page.locator("#chosen-count")).to_have_text("1 job chosen")
    expect(page.locator(".of-chosen").first).to_be_enabled()
    page.keyboard.press("k")
    page.keyboard.press("x")
    expect(page.locator("#chosen-count")).to_have_text("2 jobs chosen")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("jx?")
    assert page.input_value("#search") == "jx?"
    expect(page.locator("#keys")).not_to_be_visible()


@ONE_DATABASE
def test_finding_a_job(watched: Watched, busy: Busy) -> None:
    """By its key, and by its id."""
    page = watched.go("jobs")
    page.fill("#search", "order-1187")
    page.click("text=Show")
    expect(page.locator(".rows tbody tr")).to_have_count(1)
    page.fill("#search", str(busy.dead[0]))
    page.click("text=Show")
    expect(page.locator("h1")).to_contain_text("send_welcome")


@ONE_DATABASE
def test_filters_are_in_the_address(watched: Watched, busy: Busy) -> None:
    """Choosing a task changes the list and the URL, which another browser opens to the same list."""
    page = watched.go("jobs?state=due")
    page.select_option("select[name=task]", "sync_customer")
    expect(page.locator(".rows tbody tr")).to_have_count(25)
    assert "task=sync_customer" in page.url
    page.reload()
    expect(page.locator(".rows tbody tr")).to_have_count(25)


@ONE_DATABASE
def test_times_are_utc_or_local(watched: Watched, busy: Busy) -> None:
    """One switch for all times; the choice is kept."""
    page = watched.go()
    utc = page.locator("footer time").inner_text()
    page.click("#zone")
    local = page.locator("footer time").inner_text()
    assert (int(local[11:13]) - int(utc[11:13])) % 24 == 9
    page.reload()
    expect(page.locator("#zone")).to_have_text("Local time")


@ONE_DATABASE
def test_the_browser_refuses_frames_and_foreign_forms(watched: Watched, busy: Busy, app: App, tmp_path: Path) -> None:
    """A page of another origin can neither frame the dashboard nor submit an action to it."""
    page = watched.page
    attack = tmp_path / "attack.html"
    attack.write_text(
        f'<iframe id="f" src="{watched.url}/"></iframe>'
        f'<form id="x" method="post" action="{watched.url}/act"><input name="action" value="retry">'
        f'<input name="job" value="{busy.dead[0]}:1"><input name="token" value="guess"></form>'
    )
    watched.go("dead")  # the browser has the cookie now
    page.goto(attack.as_uri())
    page.evaluate("document.getElementById('x').submit()")
    page.wait_for_load_state()
    expect(page.locator("h1")).to_contain_text("refused")
    view = apart(app.job(busy.dead[0]).view_sync)
    assert view is not None
    assert view.state is State.DEAD
    watched.wrong.clear()  # the refusals themselves, and the address of the attack
