"""Type checkers know the parameters of `enqueue`: they accept right calls and refuse wrong ones, line by line.

mypy always runs. pyright needs node and, on its first run, a download: if it cannot run, the test
says so.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE = 100.0
ACCEPTED = sorted(file.name for file in HERE.glob("accepted*.py"))
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = pytest.mark.slow


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The files in a separate directory, away from the project's settings for checkers and linters."""
    for name in ACCEPTED:
        shutil.copy(HERE / name, tmp_path / name)
    shutil.copy(HERE / "refused.py.txt", tmp_path / "refused.py")
    return tmp_path


def expected(file: Path) -> list[int]:
    lines = file.read_text().splitlines()
    return [number for number, line in enumerate(lines, start=1) if line.endswith("# refused")]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def mypy(folder: Path, name: str) -> list[int]:
    """The lines that mypy --strict refuses."""
    done = run(folder, sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent", name)
    found = re.findall(rf"{re.escape(name)}:(\d+): error", done.stdout)
    assert found or done.returncode == 0, done.stdout + done.stderr
    return sorted({int(line) for line in found})


@functools.cache
def why_no_pyright() -> str | None:
    """Why pyright cannot run here, or None."""
    if shutil.which("pyright", path=str(Path(sys.executable).parent)) is None:
        return "pyright is not installed"
    try:
        done = run(HERE, str(Path(sys.executable).parent / "pyright"), "--version")
    except subprocess.TimeoutExpired:
        return "pyright could not be fetched in time"
    return None if done.returncode == 0 else f"pyright does not start: {done.stderr.strip()[-200:]}"


def pyright(folder: Path, name: str) -> list[int]:
    """The lines that pyright in its strict mode refuses."""
    why = why_no_pyright()
    if why is not None:
        pytest.skip(f"not checked here: {why}")
    settings = {
        "include": [name],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": PYTHON,
        "typeCheckingMode": "strict",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(Path(sys.executable).parent / "pyright"), "--outputjson", "--pythonpath", sys.executable]
    report = json.loads(run(folder, *command).stdout)
    faults = [fault for fault in report["generalDiagnostics"] if fault["severity"] == "error"]
    return sorted({fault["range"]["start"]["line"] + 1 for fault in faults})


@pytest.mark.parametrize("name", ACCEPTED)
def test_mypy_accepts_the_examples(examples: Path, name: str) -> None:
    """Mypy --strict finds nothing in what users write."""
    assert mypy(examples, name) == []


def test_mypy_refuses_exactly_the_wrong_lines(examples: Path) -> None:
    """Mypy --strict finds each mistake, and nothing else."""
    assert mypy(examples, "refused.py") == expected(examples / "refused.py")


@pytest.mark.parametrize("name", ACCEPTED)
def test_pyright_accepts_the_examples(examples: Path, name: str) -> None:
    """Pyright strict finds nothing in what users write."""
    assert pyright(examples, name) == []


def test_pyright_refuses_exactly_the_wrong_lines(examples: Path) -> None:
    """Pyright strict finds each mistake, and nothing else."""
    assert pyright(examples, "refused.py") == expected(examples / "refused.py")
