"""Renew the locked files of the peers: part of `make lock`, which has installed uv by then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.environments import LOCKS

UVLOOP = "uvloop; sys_platform != 'win32'"
PSYCOPG = "psycopg[binary,pool]"
PEERS = {
    "pgqueuer": ["pgqueuer[asyncpg]", UVLOOP],
    "procrastinate": ["procrastinate", PSYCOPG, UVLOOP],
    "oban": ["oban", PSYCOPG, UVLOOP],
    "saq": ["saq[postgres]", PSYCOPG, UVLOOP],
    "dbos": ["dbos"],
    "absurd-sdk": ["absurd-sdk==0.4.0", "psycopg[binary]", UVLOOP],
    "chancy": ["chancy[asyncio]", PSYCOPG, UVLOOP],
    "huey": ["huey"],
}
PYTHONS = {"oban": "3.12"}
"""The oldest Python of each; 3.11 if it is not named."""
OPTIONS = ["--universal", "--upgrade", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]


def lock(name: str, requirements: list[str]) -> None:
    """Resolve one peer's requirements, with hashes."""
    uv = str(Path(sys.executable).parent / "uv")
    target = ["--python-version", PYTHONS.get(name, "3.11"), "--output-file", str(LOCKS / f"{name}.txt")]
    subprocess.run(  # noqa: S603 - our own environment's uv
        [uv, "pip", "compile", "-", *OPTIONS, "--quiet", *target], input="\n".join(requirements), text=True, check=True
    )


def main() -> None:
    """All of them."""
    for name, requirements in PEERS.items():
        lock(name, requirements)


if __name__ == "__main__":
    main()
