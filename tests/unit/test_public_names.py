"""The public names that `reltask` exports; every coroutine has a counterpart for synchronous code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

import reltask
import reltask.events
from reltask import App, Job, Lease, Task
from reltask.producer.task import Producer

PUBLIC = [
    "AccessRefused",
    "Again",
    "AmbiguousError",
    "App",
    "ArgumentsError",
    "Backoff",
    "BaseContext",
    "Call",
    "Cancel",
    "Cancellation",
    "ChildFailed",
    "ChildView",
    "CircuitOpen",
    "Codec",
    "ConfigurationError",
    "ConflictError",
    "Context",
    "DatabaseError",
    "DeclarationError",
    "Hidden",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobView",
    "Lease",
    "LeaseLost",
    "LeaseTaken",
    "LeaseView",
    "Limit",
    "LimitKeyView",
    "LimitView",
    "LockLost",
    "Middleware",
    "MissingExtra",
    "Outcome",
    "Overview",
    "PauseKind",
    "PauseView",
    "PermanentError",
    "ProcessContext",
    "ReltaskError",
    "ResultGone",
    "Retry",
    "RunView",
    "ScheduleView",
    "SchemaError",
    "SettingsError",
    "ShardView",
    "Signal",
    "SignalView",
    "Snooze",
    "State",
    "StatusView",
    "Step",
    "StepFailed",
    "StepKind",
    "StepState",
    "StepView",
    "Stopped",
    "SyncContext",
    "SyncTransaction",
    "Task",
    "TaskStats",
    "TaskTransaction",
    "Term",
    "TransientError",
    "UnknownJob",
    "UnknownTask",
    "UnreadablePayload",
    "UsageError",
    "WaitTimeout",
    "WorkerView",
    "__version__",
    "current_step",
]
"""The documented list. To add or remove a name is a decision, and changes this list."""


IMPORT = re.compile(r"^\s*from (reltask[\w.]*) import (.+?)(?: +#.*)?$", re.MULTILINE)
OPEN_MODULES = ("reltask.events", "reltask.testing", "reltask.integrations.")
"""All that they define is public."""
BLOCKS = {"lease"}
"""Entered by `async with`, not awaited."""


def test_all_is_the_documented_list() -> None:
    """`__all__` equals the list, and `dir` shows it."""
    assert sorted(reltask.__all__) == PUBLIC
    assert sorted(dir(reltask)) == PUBLIC


def test_the_page_lists_every_name() -> None:
    """docs/api.md has a row for each public name, and for the two public modules; everything else is internal."""
    page = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted([*PUBLIC, "events", "testing"])


def test_the_page_lists_every_event() -> None:
    """docs/api.md has a row for each event that is sent."""
    page = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    bases = (reltask.events.Event, reltask.events.RunEvent, reltask.events.LeaseEvent)
    sent = [
        name
        for name, kind in vars(reltask.events).items()
        if isinstance(kind, type) and issubclass(kind, reltask.events.Event) and kind not in bases
    ]
    assert sorted(re.findall(r"^\| `events\.(\w+)` \|", page, re.MULTILINE)) == sorted(sent)


def test_pages_import_public_names_only() -> None:
    """A reader can write what README, guides and examples write: no page imports an internal module or name."""
    public = {"reltask": {*PUBLIC, "events", "testing"}, "reltask.telemetry.opentelemetry": {"instrument"}}
    root = Path(__file__).parents[2]
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for module, names in IMPORT.findall(page.read_text(encoding="utf-8")):
            assert module in public or module.startswith(OPEN_MODULES), f"{page.name}: {module}"
            named = {name.split(" as ")[0].strip(" ()") for name in names.split(",")}
            assert module not in public or named <= public[module], f"{page.name}: {names}"


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_can_be_imported(name: str) -> None:
    """Names are loaded on first use; each one exists, has a module and a docstring."""
    value = getattr(reltask, name)
    assert name == "__version__" or (value.__doc__ and value.__module__.startswith("reltask."))


def test_unknown_name_is_an_attribute_error() -> None:
    """It fails as with any module."""
    with pytest.raises(AttributeError, match="no attribute 'Appp'"):
        reltask.Appp  # noqa: B018 - the access is the test


def test_version_is_that_of_the_package() -> None:
    """One version, in pyproject.toml and in the code."""
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)[1] == reltask.__version__  # type: ignore[index]


def _coroutines(owner: type) -> list[str]:
    """The public methods whose result is awaited."""
    found = []
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        result = inspect.signature(method).return_annotation
        is_coroutine = inspect.iscoroutinefunction(method) or str(result).startswith("Coroutine[")
        if not name.startswith("_") and is_coroutine:
            found.append(name)
    return found


@pytest.mark.parametrize("owner", [App, Task, Producer, Job, Lease])
def test_every_coroutine_has_a_sync_counterpart(owner: type) -> None:
    """X and x_sync: the same parameters, and x_sync returns what x returns when awaited."""
    names = _coroutines(owner)
    assert names
    for name in names:
        twin = getattr(owner, f"{name}_sync")
        method = getattr(owner, name)
        assert inspect.signature(method).parameters == inspect.signature(twin).parameters, name
        promised = str(inspect.signature(method).return_annotation)
        assert promised == f"Coroutine[Any, Any, {inspect.signature(twin).return_annotation}]", name
        assert f"`{name}`" in twin.__doc__, name


def test_every_sync_method_has_its_coroutine() -> None:
    """No x_sync without x."""
    for owner in (App, Task, Job, Lease):
        twins = [name for name, _ in inspect.getmembers(owner, inspect.isfunction) if name.endswith("_sync")]
        assert {name.removesuffix("_sync") for name in twins} - BLOCKS == set(_coroutines(owner))


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_every_block_has_a_sync_counterpart(name: str) -> None:
    """`async with app.x(…)` and `with app.x_sync(…)`: the same parameters, and the same thing inside."""
    block, twin = inspect.signature(getattr(App, name)), inspect.signature(getattr(App, f"{name}_sync"))
    assert block.parameters == twin.parameters
    assert block.return_annotation == str(twin.return_annotation).replace("AbstractContext", "AbstractAsyncContext")


def test_promises_are_real_types() -> None:
    """The annotations by which they are compared can be resolved."""
    hints: dict[str, Any] = get_type_hints(Job.view)
    assert get_origin(hints["return"]) is Coroutine
