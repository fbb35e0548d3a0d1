"""The dashboard for everyone: axe-core's rules, both themes, narrow screens."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from reltask import App
from reltask.model.screens import ListedState
from tests.web.busy import Busy
from tests.web.conftest import Serve
from tests.web.screens import SCREENS, Watched, call, path_of, photograph

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first one may install the browser
NOT_FOUND = "Failed to load resource: the server responded with a status of 404 (Not Found)"


@pytest.mark.parametrize("width", [1280, 390])
def test_every_screen_is_accessible(watched: Watched, axe: str, busy: Busy, width: int) -> None:
    """No screen breaks a serious rule, on a desk or on a telephone."""
    watched.page.set_viewport_size({"width": width, "height": 800})
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


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_both_themes_can_be_read(  # noqa: PLR0917 - fixtures
    browser: Browser, serve: Serve, axe: str, busy: Busy, app: App, scheme: Any
) -> None:
    """Contrast holds in the system's theme, and the switch changes it for good."""
    if not app.url.startswith("sqlite"):
        pytest.skip("the same pages")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    served = serve(local="act")
    for name in SCREENS:
        page.goto(f"{served.url}/{path_of(name, busy)}")
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {runOnly: ['color-contrast']})")
        assert [node["html"] for one in found["violations"] for node in one["nodes"]] == [], name
        if name == "overview" and scheme == "dark":
            photograph(page, "dark")
    page.click("#theme")
    other = "light" if scheme == "dark" else "dark"
    assert page.evaluate("document.documentElement.dataset.theme") == other
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == other
    context.close()


def test_a_narrow_screen(browser: Browser, serve: Serve, busy: Busy, app: App) -> None:
    """On a telephone only tables are wider than the screen, and scroll by themselves; the menu shows its item."""
    if not app.url.startswith("sqlite"):
        pytest.skip("the same pages")
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page, served = context.new_page(), serve(local="act")
    for name in SCREENS:
        page.goto(f"{served.url}/{path_of(name, busy)}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        for item in page.locator(".side a[aria-current]").all():
            expect(item).to_be_in_viewport(ratio=1)
        if name == "overview":
            photograph(page, "narrow")
    context.close()
