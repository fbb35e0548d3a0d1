"""What the other pages show runs, what they link to is there, and what they draw is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from reltask.cli import cli
from reltask.model.job import TRANSITIONS
from reltask.stores.store import Store
from tests.docs.pages import PAGES, ROOT, blocks, links, mermaid, paths, prose
from tests.docs.terminal import Terminal

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
COLUMNS = 120
GUIDES = [
    "tutorial.md",
    "tasks.md",
    "jobs.md",
    "durable.md",
    "embedding.md",
    "deployment.md",
    "leases.md",
    "limits.md",
    "shards.md",
    "middleware.md",
    "payloads.md",
    "testing.md",
    "operating.md",
]
SKIPPED = {
    "shop/management/commands/worker.py": "needs a Django project",
    "main.py": "runs until it is stopped; `reltask worker` is the same, and the README starts one",
}


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_guide_runs_as_written(terminal: Terminal, guide: str) -> None:
    """Each program of a guide runs in the order in which it is read, and each command does what it shows."""
    terminal.skip = {"pip install reltask": "it is installed, and the network stays alone"}
    for block in blocks(ROOT / "docs" / guide):
        if block.title not in SKIPPED:
            terminal.read(block)
    assert terminal.close() == []


@pytest.mark.slow
@pytest.mark.parametrize("page", ["dashboard.md", "monitoring.md"])
def test_snippets_run_in_a_shop(terminal: Terminal, page: str) -> None:
    """A page that shows only what to add: its Python runs beside `shop.tasks`, and its commands know their options."""
    (terminal.directory / "shop").mkdir()
    (terminal.directory / "shop" / "tasks.py").write_text(
        'from reltask import App\n\napp = App("sqlite:///shop.db")\n', encoding="utf-8"
    )
    for block in blocks(ROOT / "docs" / page):
        if block.language == "python":
            terminal.read(block)
        for words in [line.split() for line in block.text.splitlines() if line.startswith("reltask ")]:
            shown = CliRunner().invoke(cli, [words[1], "--help"]).output
            assert [word for word in words if word.startswith("--") and word not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_says_how_to_run_its_programs(page: Path) -> None:
    """A program that does something when it is run comes with the command that runs it: a reader sees nothing else."""
    shown = [line for block in blocks(page) if block.language == "console" for line in block.text.splitlines()]
    programs = [block.title for block in blocks(page) if block.title and '"__main__"' in block.text]
    assert [title for title in programs if f"$ python {title}" not in shown and title not in SKIPPED] == []


def test_nothing_is_skipped_without_need() -> None:
    """Each block that the tests skip still exists."""
    titles = {block.title for guide in GUIDES for block in blocks(ROOT / "docs" / guide)}
    assert set(SKIPPED) <= titles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    """A link to a file of this tree, and a path between backticks, names something that exists."""
    assert [target for target in links(page) if not (page.parent / target).exists()] == []
    assert [path for path in paths(page) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped(page: Path) -> None:
    """A line of prose has at most 120 columns, so that diffs and terminals show it whole."""
    assert [line for line in prose(page) if len(line) > COLUMNS and "://" not in line] == []


def test_state_diagram_is_the_transition_table() -> None:
    """Every edge of the drawn state machine is a transition, and every transition is an edge."""
    edges = re.findall(r"^ +(\w+) --> (\w+): (\w+)$", mermaid(ARCHITECTURE, "stateDiagram-v2"), re.MULTILINE)
    assert len(set(edges)) == len(edges)
    assert set(edges) == {
        (state.value, to.value, verb.value) for (state, verb), transition in TRANSITIONS.items() for to in transition.to
    }


def test_diagrams_name_verbs_of_the_store() -> None:
    """Each verb in the sequence diagram and in the protocol's table is one that a store has."""
    named = set(re.findall(r"\b\w+_jobs\b", ARCHITECTURE.read_text(encoding="utf-8")))
    assert named <= set(vars(Store))
    assert {"claim_jobs", "heartbeat_jobs", "complete_jobs", "fail_jobs", "release_jobs", "reclaim_jobs"} <= named


def test_no_page_promises_what_cannot_be_kept() -> None:
    """No lock makes a mail or an HTTP call happen exactly once."""
    assert [page for page in PAGES if "exactly-once side effects" in page.read_text(encoding="utf-8").lower()] == []
