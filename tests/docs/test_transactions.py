"""docs/transactions.md does what it says: each example commits its row and its job together."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from reltask import App
from reltask.model.job import Outcome
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.terminal import Terminal

PAGE = ROOT / "docs" / "transactions.md"
EXAMPLES = [block for block in blocks(PAGE) if (block.title or "").startswith("with_")]
SETTINGS = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "corner.db"}}
USE_TZ = True
"""


@pytest.mark.slow
def test_page_runs_as_written(terminal: Terminal, tmp_path: Path, postgres_url: str) -> None:
    """Tasks leave their rows and a success; each library's example leaves one order and one job with its number."""
    shop, corner = App(postgres_url), App(f"sqlite:///{tmp_path}/corner.db")
    corner.status_sync()
    (tmp_path / "settings.py").write_text(SETTINGS)
    terminal.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    for block in blocks(PAGE):
        if block.title == "orders.sql":
            create_orders(tmp_path, postgres_url, block.text)
        else:
            terminal.read(at(block, postgres_url))
    assert terminal.close() == []
    with psycopg.connect(postgres_url) as connection:
        assert [n for (n,) in connection.execute("select number from orders order by 1")] == [1, 2, 3, 4, 5]
    with closing(sqlite3.connect(tmp_path / "corner.db")) as connection:
        assert [n for (n,) in connection.execute("select number from orders order by 1")] == [1, 2, 3, 4, 6, 7]
    assert [job.task for job in shop.jobs_sync()] == ["send_receipt"] * 5
    assert [job.task for job in corner.jobs_sync()] == ["ship"] * 2
    assert {run.outcome for run in corner.runs_sync()} == {Outcome.SUCCEEDED}
    shop.close()
    corner.close()


def create_orders(directory: Path, url: str, ddl: str) -> None:
    with closing(sqlite3.connect(directory / "corner.db")) as corner, psycopg.connect(url) as shop:
        corner.execute(ddl)
        shop.execute(ddl)


def at(block: Block, url: str) -> Block:
    """The block with the address that a reader would have to replace, too."""
    return block._replace(text=block.text.replace("//localhost/shop", url.removeprefix("postgresql:")))


def test_each_library_has_its_example() -> None:
    """Each kind of connection that can be borrowed is on the page."""
    assert [block.title for block in EXAMPLES] == [
        "with_asyncpg.py",
        "with_psycopg.py",
        "with_async_psycopg.py",
        "with_sqlalchemy.py",
        "with_async_sqlalchemy.py",
        "with_sqlite3.py",
        "with_django.py",
    ]
