"""Errors on the command line: a stable code, a remedy, a page, an exit status, and no traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reltask.errors import ReltaskError, SchemaError, TransientError, UnknownTask
from reltask.runner import exit_code
from tests.cli.project import Project

PAGE = Path(__file__).parents[2] / "docs/errors.md"


def codes(root: type[ReltaskError] = ReltaskError) -> set[str]:
    """Every code in the tree."""
    return {root.code}.union(*(codes(child) for child in root.__subclasses__()))


def test_the_page_explains_every_code_and_no_other() -> None:
    """The command line links there."""
    anchors = re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(anchors) == sorted(codes() | {"bug"})


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("projekt:app", "There is no module 'projekt'"),
        ("{name}:ap", "Did you mean {name}:app?"),
        ("{name}", "Write MODULE:app, such as {name}:app."),
        ("{name}.py", "Write MODULE:app, such as {name}:app."),
        ("{name}:number", "is no reltask.App but int"),
        ("{name}:number()", "Leave the () out"),
        ("{name}.inner:app", "There is no module '{name}.inner'"),
        ("faulty:app", "Importing 'faulty' failed: ZeroDivisionError: division by zero"),
        ("needy:app", "Importing 'needy' failed: ModuleNotFoundError: No module named 'not_installed'"),
    ],
)
def test_a_wrong_app_is_told_in_words(reference: str, error: str, project: Project) -> None:
    """Module missing, name missing, no app, a module that fails: each says what to write instead."""
    (project.folder / "faulty.py").write_text("1 / 0\n")
    (project.folder / "needy.py").write_text("import not_installed\n")
    result = project.run("worker", reference.format(name=project.name))
    assert result.code == 78
    assert error.format(name=project.name) in result.err
    assert result.err.endswith("see docs/errors.md#configuration\n")
    assert "Traceback" not in result.err


def test_a_mistyped_module_suggests_one(project: Project) -> None:
    """From the files that are here."""
    assert f"Did you mean {project.name}?" in project.run("worker", f"{project.name}s:app").err


def test_no_app_at_all(project: Project) -> None:
    """The error names both ways to name one."""
    result = project.run("worker")
    assert result.code == 78
    assert "RELTASK_APP" in result.err


def test_a_factory_makes_the_app(project: Project) -> None:
    """`MODULE:create_app()` is called."""
    assert project.run("migrate", f"{project.name}:create_app()").code == 0


def test_a_setting_without_its_unit(project: Project) -> None:
    """Options are settings: their errors name the key and the place."""
    result = project.run("worker", project.app, "--poll", "5")
    assert result.code == 78
    assert "worker.poll (command line): '5' has no unit" in result.err


def test_a_database_that_is_away(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading command does not wait for it, however patient the settings are; it has its own exit status."""
    monkeypatch.setenv("RELTASK_DATABASE_RETRY_FIRST", "10m")
    result = project.run("status", "--database", "postgresql://127.0.0.1:1/nothing")
    assert result.code == 69
    assert result.err.startswith("error[database-transient]: ")
    assert "Is the database running" in result.err


def test_a_password_on_the_command_line_is_refused_and_not_repeated(project: Project) -> None:
    """Others can read it there, and would read it in the error, too."""
    result = project.run("status", "--database", "postgresql://me:hush@127.0.0.1/x")
    assert result.code == 78
    assert "hush" not in result.err + result.out


def test_tracebacks_are_for_those_who_ask(project: Project) -> None:
    """An unforeseen error is told in a sentence; with --debug also where it happened."""
    reference = f"{project.name}:broken_factory()"
    quiet = project.run("status", reference)
    assert quiet.code == 70
    assert quiet.err.startswith("error[bug]: RuntimeError: no luck today")
    assert "Traceback" not in quiet.err
    for arguments in (["--debug", "status", reference], ["status", reference, "--debug"]):
        assert "Traceback (most recent call last):" in project.run(*arguments).err


@pytest.mark.parametrize(
    ("error", "code"),
    [(UnknownTask("x"), 1), (TransientError("x"), 69), (SchemaError("x"), 78), (RuntimeError("x"), 70)],
)
def test_exit_status_by_kind(error: Exception, code: int) -> None:
    """A supervisor decides by it whether to try again."""
    assert exit_code(error) == code
