"""Each peer in an environment of its own, from a locked file of its own, so that no peer affects another's versions.

    benchmarks/peers/NAME.txt  ──pip, by hash──►  .venv/bench/NAME/bin/python

A peer that cannot be installed is reported with its reason wherever it should have run. BENCH_PYTHON names
another interpreter for the peers, such as one that oban accepts: BENCH_PYTHON=python3.13 make bench
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from benchmarks.contestants import PEERS

ROOT = Path(__file__).parent.parent
LOCKS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path(sys.prefix) / "bench"
PATIENCE = 600
"""Seconds for one installation."""


class Environment(Struct, frozen=True):
    """The environment of a peer, or why there is none."""

    name: str
    version: str
    python: str | None = None
    problem: str | None = None


def environment(name: str) -> Environment:
    """The peer's environment, made if it is not there or its lock has changed since."""
    lock, home = LOCKS / f"{name}.txt", ENVIRONMENTS / name
    python, stamp, version = home / "bin" / "python", home / ".ready", _locked_version(name, lock)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock.read_text(encoding="utf-8"):
        return Environment(name, version, str(python))
    problem = _install(home, python, lock)
    if problem is not None:
        return Environment(name, version, problem=problem)
    stamp.write_text(lock.read_text(encoding="utf-8"), encoding="utf-8")
    return Environment(name, version, str(python))


def _install(home: Path, python: Path, lock: Path) -> str | None:
    """Make the environment; the last line of what went wrong, or None."""
    base = os.environ.get("BENCH_PYTHON", sys.executable)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input", "--quiet"]
    for command in (
        [base, "-m", "venv", "--clear", "--without-pip", str(home)],
        # The lock is complete. With dependencies, some versions of pip refuse an extra of a package that is pinned.
        [*pip, "install", "--no-deps", "--require-hashes", "--requirement", str(lock)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"not installed: {error}"
        if done.returncode != 0:
            return f"not installed: {_reason(done.stderr)}"
    return None


def _reason(output: str) -> str:
    """The line of pip's output that says why: the first error, not the last consequence."""
    if "require a different python version" in output:
        return "it needs another Python; name one by BENCH_PYTHON"
    lines = [line.strip() for line in output.splitlines() if line.startswith("ERROR")]
    return lines[0].removeprefix("ERROR: ")[:200] if lines else output.strip()[-200:]


def _locked_version(name: str, lock: Path) -> str:
    for line in lock.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}=="):
            return line.removeprefix(f"{name}==").split()[0]
    return "unknown"


def main() -> None:
    """Install all of them, and say how it went."""
    for peer in PEERS:
        made = environment(peer.name)
        print(f"  {made.name} {made.version}: {made.problem or 'ready'}", flush=True)  # noqa: T201 - a program's output


if __name__ == "__main__":
    main()
