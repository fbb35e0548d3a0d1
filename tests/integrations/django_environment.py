"""Interpreters with Django: this one with 5.2 and django-tasks, and, where Python 3.12 is found, some with Django 6.

Those are made below `.venv` when they are first asked for; without them the tests say that they did not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.environments import environment

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "django"
CANDIDATES = ("python3.14", "python3.13", "python3.12")
PACKAGES = ["psycopg[binary]", "msgspec", "cronsim", "click", "tzdata", "asyncpg"]


NEWER = {"6": "django>=6", "6.0": "django~=6.0.0"}
"""6.0 is by itself because its `@task` takes no options of a backend's."""


def interpreter(version: str) -> str:
    """The interpreter with this version of Django, or the reason why the test is skipped."""
    if version not in NEWER:
        return sys.executable
    base = _base()
    if base is None:
        pytest.skip("NOT RUN: Django 6 needs Python 3.12 or later, and none was found; RELTASK_TEST_PYTHON names one")
    found = environment(f"django{version}", base, NEWER[version], *PACKAGES)
    if found is None:
        pytest.skip("NOT RUN: Django 6 could not be installed")
    return found


@cache
def _base() -> str | None:
    named = os.environ.get("RELTASK_TEST_PYTHON")
    if named:
        return named
    if sys.version_info >= (3, 12):
        return sys.executable
    on_path = [path for name in CANDIDATES if (path := shutil.which(name)) is not None]
    installed = sorted(Path(sys.base_prefix).parent.glob("3.1[2-9]*/bin/python3"), reverse=True)
    for candidate in [*on_path, *map(str, installed)]:
        if (
            subprocess.run(
                [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"], check=False
            ).returncode
            == 0
        ):
            return candidate
    return None


class Project:
    """The example project on one database, with one interpreter."""

    def __init__(self, python: str, environment: dict[str, str]) -> None:
        self.python = python
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "DJANGO_SETTINGS_MODULE": "shop.settings"}
        self.environment |= environment

    def manage(self, *arguments: str) -> str:
        """Run a management command to its end."""
        return self._run([self.python, "manage.py", *arguments])

    def python_in_project(self, code: str) -> str:
        """Run code after `django.setup()`; returns what it prints."""
        return self._run([self.python, "-c", f"import django\ndjango.setup()\n{code}"])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=PROJECT, env=self.environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout
