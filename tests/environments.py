"""Environments that some tests need beside their own: made below it when a test first asks."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path


def environment(name: str, base: str, *options: str, stamp: str = "") -> str | None:
    """The interpreter of an environment with what `pip install` makes of the options. None: it could not be had.

    Test processes that ask at the same time take turns, so that one makes it and the others find it. The lock is
    SQLite's: it works on every system, and ends with its process.
    """
    home = Path(sys.prefix) / name
    python, ready = home / "bin" / "python", home / ".ready"
    with closing(sqlite3.connect(home.with_suffix(".lock"), timeout=600, isolation_level=None)) as turn:
        turn.execute("begin exclusive")
        if not (ready.exists() and ready.read_text(encoding="utf-8") == stamp):
            subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True, capture_output=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
            if subprocess.run(install, capture_output=True, check=False).returncode != 0:
                return None
            ready.write_text(stamp, encoding="utf-8")
    return str(python)
