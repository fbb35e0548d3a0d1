"""The dashboard's screens in front of the busy system, a page that notes what goes wrong on it, and photographs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page

from reltask import App
from tests.web.busy import Busy
from tests.web.served import Served, apart

SCREENS = {
    "overview": "",
    "jobs": "jobs?state=due&queue=mail",
    "job": "jobs/{suspended}",
    "dead-job": "jobs/{dead}",
    "tasks": "tasks",
    "queues": "queues",
    "schedules": "schedules",
    "dead": "dead",
    "workers": "workers",
    "leases": "leases",
    "actions": "actions",
    "confirm": "confirm?action=retry&state=dead&task=send_welcome",
}


class Watched:
    """A page, with all that went wrong on it."""

    def __init__(self, page: Page, served: Served) -> None:
        self.page = page
        self.url = served.url
        self.served = served
        self.wrong: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: self._host(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(text)

    def _host(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc and not url.startswith("data:"):
            self.wrong.append(f"a request to {url}")

    def go(self, path: str = "") -> Page:
        self.page.goto(f"{self.url}/{path}")
        return self.page


def path_of(name: str, busy: Busy) -> str:
    return SCREENS[name].format(suspended=busy.suspended, dead=busy.dead[0])


def photograph(page: Page, name: str) -> None:
    """Keep a screenshot for the documentation, if asked to."""
    if folder := os.environ.get("DASHBOARD_SCREENSHOTS"):
        page.evaluate("document.querySelector('.database').textContent = 'postgresql://db.example.org/shop'")
        page.screenshot(path=Path(folder) / f"dashboard-{name}.png", full_page=name in ("job", "dead-job", "overview"))


def call(app: App, operation: Callable[[Any], Any]) -> Any:
    """Ask the store."""
    return apart(lambda: app._client.run_sync(operation, name="test"))
