"""Errors on the command line have a stable code, a remedy, a page, an exit status, and no traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reltask.cli.runner import exit_code
from reltask.errors import ReltaskError, SchemaError, TransientError, UnknownTask
from tests.cli.project import Project

PAGE = Path(__file__).parents[2] / "docs/errors.md"


def codes(root: type[ReltaskError] = ReltaskError) -> set[str]:
    """Every code in the source."""
    return {root.code}.union(*(codes(child) for child in root.__subclasses__()))


def test_the_page_explains_every_code_and_no_other() -> None:
    """The command line links to that page."""
    anchors = re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(anchors) == sorted(codes() | {"bug", "output"})


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("projekt:app", "There is no module 'projekt'"),
        ("{name}:ap", "Did you mean {name}:app?"),
        ("{name}", "Write MODULE:app, such as {name}:app."),
        ("{name}.py", "Write MODULE:app, such as {name}:app."),
        ("{name}:number", "is not a reltask.App but int"),
        ("{name}:number()", "Leave the () out"),
        ("{name}.inner:app", "There is no module '{name}.inner'"),
        ("faulty:app", "Importing 'faulty' failed: ZeroDivisionError: division by zero"),
        ("needy:app", "Importing 'needy' failed: ModuleNotFoundError: No module named 'not_installed'"),
    ],
)
def test_a_wrong_app_is_explained(reference: str, error: str, project: Project) -> None:
    """Module missing, name missing, no app, a module that fails: each error says what to write instead."""
    (project.folder / "faulty.py").write_text("1 / 0\n")
    (project.folder / "needy.py").write_text("import not_installed\n")
    result = project.run("worker", reference.format(name=project.name))
    assert result.code == 78
    assert error.format(name=project.name) in result.err
    assert result.err.endswith("see: reltask explain configuration\n")
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("missing:app", "There is no module 'nope'."),
        ("failing:app", "Importing 'faulty' failed: ZeroDivisionError: division by zero"),
        ("{name}:broken_factory()", "Calling {name}:broken_factory() failed: RuntimeError: no luck today"),
        ("living:app", "The app's lifespan failed: RuntimeError: no pool today"),
        ("leaving:app", "The app's lifespan failed: RuntimeError: it does not close"),
        ("plain:app", "The app's lifespan failed: TypeError: "),
    ],
)
def test_a_failure_of_the_apps_own_code_is_reported_as_such(reference: str, error: str, project: Project) -> None:
    """A module of tasks, a factory, a lifespan: an error in the user's code is not reported as reltask's."""
    before = "from contextlib import asynccontextmanager\nfrom reltask import App\n"
    lifespan = "@asynccontextmanager\nasync def lifespan(app):\n    "
    app = "app = App('sqlite:///jobs.db', lifespan=lifespan)\n"
    modules = {
        "faulty": "1 / 0\n",
        "missing": f"{before}app = App('sqlite:///jobs.db', imports=['nope'])\n",
        "failing": f"{before}app = App('sqlite:///jobs.db', imports=['faulty'])\n",
        "living": f"{before}{lifespan}raise RuntimeError('no pool today')\n    yield\n{app}",
        "leaving": f"{before}{lifespan}yield\n    raise RuntimeError('it does not close')\n{app}",
        "plain": f"{before}async def lifespan(app):\n    yield\n{app}",
    }
    for name, text in modules.items():
        (project.folder / f"{name}.py").write_text(text)
    result = project.call("worker", reference.format(name=project.name), "--once")
    assert result.code == 78
    assert f"error[configuration]: {error.format(name=project.name)}" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("lifespan", "error", "code"),
    [
        ("yield", "error[bug]: RuntimeError: not its fault", 70),
        ("raise TransientError('the bank is away')", "error[database-transient]: the bank is away", 69),
    ],
)
def test_the_lifespan_is_not_blamed_for_others(lifespan: str, error: str, code: int, project: Project) -> None:
    """An error that passes through the lifespan keeps its class, and so does reltask's own."""
    (project.folder / "around.py").write_text(
        "from contextlib import asynccontextmanager\n"
        "from reltask import App\nfrom reltask.errors import TransientError\n"
        f"@asynccontextmanager\nasync def lifespan(app):\n    {lifespan}\n    yield\n"
        "class Odd(App):\n    def declarations(self):\n        raise RuntimeError('not its fault')\n"
        "app = Odd('sqlite:///jobs.db', lifespan=lifespan)\n"
    )
    result = project.call("worker", "around:app", "--once")
    assert result.code == code
    assert error in result.err


def test_a_mistyped_module_suggests_one(project: Project) -> None:
    """The suggestion comes from the files in the directory."""
    assert f"Did you mean {project.name}:app?" in project.run("worker", f"{project.name}s:app").err


def test_no_app_at_all(project: Project) -> None:
    """The error names both ways to name an app."""
    result = project.run("worker")
    assert result.code == 78
    assert "RELTASK_APP" in result.err


def test_an_app_without_a_database(project: Project) -> None:
    """If an app was named, the error says what it lacks."""
    (project.folder / "homeless.py").write_text("from reltask import App\napp = App()\n")
    result = project.run("status", "homeless:app")
    assert result.code == 78
    assert "No database is configured." in result.err
    assert "No app and no database is named." in project.run("status").err


def test_a_factory_makes_the_app(project: Project) -> None:
    """`MODULE:create_app()` is called."""
    assert project.run("migrate", f"{project.name}:create_app()").code == 0


def test_a_setting_without_its_unit(project: Project) -> None:
    """Options are settings: their errors name the key and the source."""
    result = project.run("worker", project.app, "--poll", "5")
    assert result.code == 78
    assert "worker.poll (command line): '5' has no unit" in result.err


def test_a_database_that_is_away(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that reads does not wait for the database, whatever the settings; it has its own exit status."""
    monkeypatch.setenv("RELTASK_DATABASE_RETRY_FIRST", "10m")
    result = project.run("status", "--database", "postgresql://127.0.0.1:1/nothing")
    assert result.code == 69
    assert result.err.startswith("error[database-transient]: ")
    assert "Check that the database is running" in result.err


def test_a_password_on_the_command_line_is_refused_and_not_repeated(project: Project) -> None:
    """Other users can read a command line; the error does not repeat the password."""
    result = project.run("status", "--database", "postgresql://me:hush@127.0.0.1/x")
    assert result.code == 78
    assert "hush" not in result.err + result.out


def test_tracebacks_are_shown_on_request(project: Project) -> None:
    """An unexpected error is one sentence; --debug adds the traceback."""
    (project.folder / "odd.py").write_text(
        "from reltask import App\n"
        "class Odd(App):\n    def status_sync(self):\n        raise RuntimeError('no luck today')\n"
        "app = Odd('sqlite:///jobs.db')\n"
    )
    reference = "odd:app"
    project.run("migrate", reference)
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
    """A supervisor decides by it whether to restart."""
    assert exit_code(error) == code


def test_every_error_code_is_explained(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """`reltask explain CODE` prints a code's section, also as error[CODE]; for an unknown one it names the nearest."""
    shown = project.run("explain", "error[unknown-task]")
    assert shown.code == 0
    assert "aliases=" in shown.out
    wrong = project.run("explain", "unknown-tsk")
    assert wrong.code != 0
    assert "unknown-task" in wrong.err
    monkeypatch.setenv("RELTASK_DOCS_URL", "https://docs.example.org/")
    assert "see https://docs.example.org/errors/usage.html" in project.run("explain", "unknown-tsk").err
