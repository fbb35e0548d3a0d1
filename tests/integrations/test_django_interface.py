"""The rules of Django's tasks interface, checked inside Django processes: see django_checks.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integrations.django_environment import Project
from tests.integrations.test_django import project

pytestmark = pytest.mark.slow
__all__ = ["project"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "project", ["5.2 on SQLite", "5.2 on PostgreSQL", "6 on SQLite", "6 on PostgreSQL"], indirect=True
)
def test_backend_keeps_every_rule(project: Project) -> None:
    """Each check passes: enqueue, results, failures, signals, logs, validation, transactions, connections."""
    project.environment["PYTHONPATH"] += f":{Path(__file__).parent}"
    shown = project.python_in_project("import django_checks\ndjango_checks.main()")
    report = json.loads(shown.splitlines()[-1])
    assert report["failed"] == {}, "\n".join(report["failed"].values())
    assert report["run"] >= 20
