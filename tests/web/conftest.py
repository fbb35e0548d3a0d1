"""The dashboard on every database, in front of a busy system: over ASGI, and in a real browser.

The browser is Debian's chromium. Where it is missing, root installs it; otherwise the browser tests say plainly that
they did not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from reltask import App
from reltask.web.access import Authorize
from tests import mssql_server
from tests.postgres_server import PostgresServer
from tests.web.busy import Busy, populate, shop
from tests.web.screens import Watched
from tests.web.served import Served, apart

expect.set_options(timeout=20_000)  # a loaded machine may be slow; what must be quick says so
AXE = "4.14.0"
ONE_DATABASE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For what happens in the browser or in Python, and is the same in front of every database."""


@pytest.fixture(params=mssql_server.databases())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty, migrated database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db"
    elif request.param == "mssql":
        mssql: str = request.getfixturevalue("mssql_database")
        connection = mssql_server.open_connection(mssql)
        mssql_server.clear(connection)
        connection.close()
        yield mssql
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        template: str = request.getfixturevalue("postgres_template")
        name = f"web_{abs(hash(request.node.nodeid)) % 10**10}"
        yield server.create_database(name, template=template)
        server.drop_database(name)


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """The shop, on an empty database."""
    made = shop(url)
    yield made
    apart(made.close)


@pytest.fixture
def busy(app: App) -> Busy:
    """The shop with 200 jobs."""

    async def fill() -> Busy:
        store = app._make_store()
        await store.open()
        try:
            return await populate(store)
        finally:
            await store.close()

    return apart(lambda: asyncio.run(fill()))


Client = Callable[..., httpx.AsyncClient]
Serve = Callable[..., Served]


@pytest.fixture
async def client(app: App) -> AsyncIterator[Client]:
    """Makes clients of dashboards: `client(authorize=…)`, or of this machine with `local="act"`."""
    opened: list[httpx.AsyncClient] = []

    def make(authorize: Authorize | None = None, *, root: str = "", peer: str = "127.0.0.1", **options: Any) -> Any:
        dashboard = app._make_dashboard(authorize, **options)
        transport = httpx.ASGITransport(dashboard, client=(peer, 1), root_path=root)
        opened.append(httpx.AsyncClient(transport=transport, base_url=f"http://localhost{root}"))
        return opened[-1]

    yield make
    for one in opened:
        await one.aclose()


# The browser


@cache
def chromium() -> str | None:
    """The program, installed if that is possible."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        waiting = ["-qq", "-o", "DPkg::Lock::Timeout=300"]  # processes of one test run may all be here
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["apt-get", *waiting, *command], capture_output=True, check=False, timeout=600)
        found = shutil.which("chromium")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser, for one module: its driver keeps a loop running, which other tests could not bear."""
    program = chromium()
    if program is None:
        pytest.skip(
            "NOT RUN: there is no chromium, and it could not be installed. Install it: apt-get install chromium"
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NOT RUN: there is no npm to install axe-core with.")
    command = [npm, "install", "--silent", "--no-audit", f"axe-core@{AXE}"]
    if subprocess.run(command, cwd=folder, check=False, timeout=300).returncode:
        pytest.skip("NOT RUN: axe-core could not be installed from npm; nothing was checked for accessibility.")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def serve(app: App) -> Iterator[Serve]:
    """Serves the app's dashboard: `serve(local="act")`."""
    served: list[Served] = []

    def make(authorize: Authorize | None = None, **options: Any) -> Served:
        served.append(Served(app._make_dashboard(authorize, reference="shop:app", **options)))
        return served[-1]

    yield make
    for one in served:
        one.close()


@pytest.fixture
def watched(browser: Browser, serve: Serve) -> Iterator[Watched]:
    """A page of a viewer who may act; it fails if the console or the network shows anything wrong."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, timezone_id="Asia/Tokyo")
    page = Watched(context.new_page(), serve(local="act"))
    yield page
    context.close()
    assert page.wrong == []
