"""Linters of workflows, Dockerfiles, compose files and archives, in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import environment

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "tools" / "requirements-linters.txt"


def lint(linter: str, *arguments: str | Path) -> str:
    """What a linter says when it is not content; an empty text if it is. It reaches no network."""
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK)]
    python = environment("linters", sys.executable, *options, stamp=LOCK.read_text(encoding="utf-8"))
    if python is None:
        pytest.skip("NOT RUN: hadolint, check-jsonschema, zizmor and twine could not be installed")
    command = [str(Path(python).with_name(linter)), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
