"""The example applications: started as their READMEs say, used over HTTP, tested and typed as programs of their own."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import Terminal, commands

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "examples"
APPLICATIONS = ["django", "fastapi", "flask", "litestar", "sqlalchemy", "starlette"]
NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="NOT RUN: there is no curl")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the example, so that its database is the test's own."""
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.db*")
    return Path(shutil.copytree(EXAMPLES / request.param, tmp_path / request.param, ignore=ignored))


class OwnTerminal(Terminal):
    """Pytest has the plugin that a reader has, reltask's, and not those of this suite, which are slow to load."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "reltask.integrations.pytest_plugin"}
        self.environment |= plugins


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def follow(terminal: Terminal, page: Path) -> None:
    """Write each file and type every command of a page; `ID` is the job that the command before it printed."""
    for block in blocks(page):
        if block.title:
            (terminal.directory / block.title).write_text(block.text, encoding="utf-8")
            continue
        for command in commands(block.text):
            if command.line.startswith("pip "):
                continue  # the packages are locked and installed; the network stays alone
            terminal.type(command)
            if found := UUID.search(terminal.shown):
                terminal.instead["ID"] = found[0]


@pytest.mark.skipif(os.name != "posix", reason="Windows sends Ctrl+C to every process of the console, this one too")
@NEEDS_CURL
@pytest.mark.parametrize("folder", APPLICATIONS, indirect=True)
def test_readme_starts_and_uses_the_application(folder: Path, request: pytest.FixtureRequest) -> None:
    """Server and worker start, requests enqueue, results come back over HTTP, the example's own tests pass."""
    needs_postgres = "postgresql://localhost/shop" in (folder / "README.md").read_text(encoding="utf-8")
    url = request.getfixturevalue("empty_postgres_url") if needs_postgres else ""  # its password is in the environment
    terminal = OwnTerminal(folder)
    terminal.instead = {"8000": free_port(), "postgresql://localhost/shop": url}
    try:
        follow(terminal, folder / "README.md")
        workers = [one for one in terminal.background if " worker " in f"{one.command.line} "]
        assert {one.interrupt() for one in workers} <= {0}
    finally:
        terminal.kill()


@pytest.mark.skipif(os.name != "posix", reason="Windows sends Ctrl+C to every process of the console, this one too")
@NEEDS_CURL
def test_page_leads_from_an_empty_folder_to_a_receipt(tmp_path: Path, empty_postgres_url: str) -> None:
    """The files and commands of docs/fastapi.md are all that it takes; the files are those of the example."""
    terminal = OwnTerminal(tmp_path)
    terminal.instead = {"8000": free_port(), "postgresql://localhost/shop": empty_postgres_url}
    try:
        follow(terminal, ROOT / "docs" / "fastapi.md")
    finally:
        terminal.kill()
    for name in ("tasks.py", "web.py"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / "fastapi" / name).read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="Windows sends Ctrl+C to every process of the console, this one too")
@NEEDS_CURL
@pytest.mark.parametrize("folder", ["sqlalchemy"], indirect=True)
def test_sqlalchemy_on_postgresql(folder: Path, postgres_url: str) -> None:
    """The same program with SHOP_DATABASE, as its README says."""
    terminal = OwnTerminal(folder)
    terminal.instead["8000"] = free_port()
    terminal.environment["SHOP_DATABASE"] = postgres_url
    try:
        follow(terminal, folder / "README.md")
    finally:
        terminal.kill()


@pytest.mark.parametrize("folder", [name for name in APPLICATIONS if name != "django"], indirect=True)
def test_application_is_typed(folder: Path) -> None:
    """Each program passes mypy in strict mode, run in its own folder."""
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    cache = ROOT / ".mypy_cache" / "applications"  # `make check` has other options: they would undo each other
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache)]
    done = subprocess.run([*command, "."], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
