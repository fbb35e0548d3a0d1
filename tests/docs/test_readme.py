"""The README is a program: its blocks run in order, in an empty directory, with a real worker."""

from __future__ import annotations

import os

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import Terminal

README = ROOT / "README.md"
SKIPPED = {
    "pip install reltask": "the tests run on the tree itself, and leave the machine's network alone",
    'pip install "reltask[postgres]"': "likewise; asyncpg is among the locked packages",
    "make demo": "kills processes for up to a minute; tests of the demo run it",
    "make test": "this is it",
}


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Windows sends Ctrl+C to every process of the console, this one too")
def test_every_block_runs_in_order(terminal: Terminal, empty_postgres_url: str) -> None:
    """Each block of the README does what it shows, from top to bottom; Ctrl+C ends the worker with status 0."""
    terminal.skip = SKIPPED
    terminal.instead["postgresql://localhost/shop"] = empty_postgres_url
    for block in blocks(README):
        terminal.read(block)
    assert terminal.close() == [0]
    assert terminal.skipped == set(SKIPPED)


def test_first_program_is_eight_lines_and_an_example() -> None:
    """The quick start is eight lines, and examples/app.py is the same program."""
    (program,) = [block.text for block in blocks(README) if block.title == "app.py"]
    assert len(program.splitlines()) == 8
    assert (ROOT / "examples" / "app.py").read_text(encoding="utf-8").endswith(program)


def test_settings_file_is_an_example() -> None:
    """The file that the README shows is the one that ships."""
    (shown,) = [block.text for block in blocks(README) if block.title == "appsettings.json"]
    assert (ROOT / "examples" / "appsettings.json").read_text(encoding="utf-8") == shown


@pytest.mark.parametrize("claim", ["exactly-once delivery", "guaranteed"])
def test_no_promise_that_cannot_be_kept(claim: str) -> None:
    """No system can promise this for effects outside the database."""
    assert claim not in README.read_text(encoding="utf-8").lower()


def test_blocks_are_of_kinds_that_run() -> None:
    """A block in another language would not be used, and could become wrong unnoticed."""
    assert {block.language for block in blocks(README)} == {"python", "console", "json"}
