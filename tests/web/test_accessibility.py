"""The dashboard for everyone: axe-core's rules, both themes, narrow screens. The pages are those of every database."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from reltask import App
from reltask.model.screens import ListedState
from tests.web.busy import Busy, record
from tests.web.conftest import ONE_DATABASE, Serve
from tests.web.screens import SCREENS, Watched, call, path_of, photograph
from tests.web.test_security import fill_with_texts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), ONE_DATABASE]  # the first one may install the browser
HEIGHTS = "Array.from(document.querySelectorAll('tr'), (row) => row.getBoundingClientRect().height)"
NOT_FOUND = "Failed to load resource: the server responded with a status of 404 (Not Found)"


@pytest.mark.parametrize("width", [1280, 390])
def test_every_screen_is_accessible(watched: Watched, axe: str, busy: Busy, width: int) -> None:
    """No screen breaks a serious rule, on a desk or on a telephone."""
    watched.page.set_viewport_size({"width": width, "height": 800})
    watched.go(f"jobs/{busy.schedule}").click("button[value=run]")  # for the page of actions
    paths = [path_of(name, busy) for name in SCREENS]
    for path in [*paths, *(f"jobs?state={state}" for state in ListedState), "confirm?action=cancel&state=later", "no"]:
        assert serious(watched.go(path), axe) == [], path
    watched.wrong.remove(NOT_FOUND)


def test_the_empty_screens_are_accessible(watched: Watched, axe: str, app: App) -> None:
    """Those of a system in which nothing has run."""
    call(app, lambda store: store.read_now())
    for name in ("", "jobs", "dead", "tasks", "queues", "schedules", "workers", "leases", "actions"):
        assert serious(watched.go(name), axe) == [], name


def serious(page: Page, axe: str) -> list[tuple[str, str]]:
    """The serious rules that a page breaks, and where."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


def test_the_dark_theme_can_be_read(browser: Browser, serve: Serve, axe: str, busy: Busy) -> None:
    """Contrast holds there, too."""
    context = browser.new_context(color_scheme="dark", viewport={"width": 1280, "height": 800})
    page, served = context.new_page(), serve(local="act")
    for name in SCREENS:
        page.goto(f"{served.url}/{path_of(name, busy)}")
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {runOnly: ['color-contrast']})")
        assert [node["html"] for one in found["violations"] for node in one["nodes"]] == [], name
        if name == "overview":
            photograph(page, "dark")
    context.close()


@pytest.mark.parametrize(("scheme", "other"), [("dark", "light"), ("light", "dark")])
def test_the_theme_is_kept(browser: Browser, serve: Serve, app: App, scheme: Any, other: str) -> None:
    """The switch changes the system's theme for good."""
    call(app, lambda store: store.read_now())
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(serve().url)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == other
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == other
    context.close()


def test_a_narrow_screen(browser: Browser, serve: Serve, busy: Busy) -> None:
    """On a telephone only tables are wider than the screen, and scroll by themselves; the menu shows its item."""
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page, served = context.new_page(), serve(local="act")
    page.goto(f"{served.url}/jobs/{busy.schedule}")
    page.click("button[value=run]")  # for the page of actions
    for name in SCREENS:
        page.goto(f"{served.url}/{path_of(name, busy)}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        assert max(page.evaluate(HEIGHTS), default=0) < 200, name  # no column of single letters
        for item in page.locator(".side a[aria-current]").all():
            expect(item).to_be_in_viewport(ratio=1)
        if name == "overview":
            photograph(page, "narrow")
    context.close()


def test_long_names_fit(browser: Browser, serve: Serve, app: App) -> None:
    """Names of 200 letters, which no one may break, widen no page, and no row grows over the screen."""
    jobs = call(app, lambda store: fill_with_texts(store, "a" * 190, "b" * 30))
    many = record("host", queues=[f"queue-{nth}-{'c' * 30}" for nth in range(30)])
    call(app, lambda store: store.register_worker(many))
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page, served = context.new_page(), serve(local="act")
    lists = [path for name, path in SCREENS.items() if "{" not in path and name != "confirm"]
    for path in [
        *lists,
        "jobs",
        "jobs?state=dead",
        "confirm?action=retry&state=dead",
        *(f"jobs/{job}" for job in jobs),
    ]:
        page.goto(f"{served.url}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert max(page.evaluate(HEIGHTS), default=0) < 400, path
    context.close()
