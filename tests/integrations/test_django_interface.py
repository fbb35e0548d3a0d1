"""The rules of Django's tasks interface, checked inside Django processes: see django_checks.py."""

from __future__ import annotations

import json
import os

import pytest

from tests.integrations.django_environment import ROOT, Project

pytestmark = pytest.mark.slow
PROJECTS = ["5.2 on SQLite", "5.2 on PostgreSQL", "6.0 on SQLite", "6 on SQLite", "6 on PostgreSQL"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("project", PROJECTS, indirect=True)
def test_backend_keeps_every_rule(project: Project) -> None:
    """Each check passes: enqueue, results, failures, signals, logs, validation, transactions, connections."""
    assert passed(project, "django_checks") >= 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("project", PROJECTS, indirect=True)
def test_backend_keeps_the_rules_under_other_settings(project: Project) -> None:
    """Without USE_TZ, with two aliases beside another "default", and with a queue that no task declares."""
    project.environment["DJANGO_SETTINGS_MODULE"] = "tests.integrations.django_settings_of_another"
    assert passed(project, "django_other_checks") >= 6


def passed(project: Project, program: str) -> int:
    """How many checks of a program there are, all of which pass."""
    project.environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    shown = project.python_in_project(
        f"from tests.integrations import django_checking, {program} as program\ndjango_checking.report(vars(program))\n"
    )
    report = json.loads(shown.splitlines()[-1])
    assert report["failed"] == {}, "\n".join(report["failed"].values())
    checks: int = report["run"]
    return checks
