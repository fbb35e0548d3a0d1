"""Three newcomers, each in an empty folder with the commands of one page alone: `python -m tests.journeys [PYTHON …]`.

Unlike the tests of the pages, this makes the environments and installs the packages, so it needs an index; reltask
comes from `make build`. A PostgreSQL and its address are what the page of FastAPI asks the reader for.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import SERVERS, Command, commands, seen
from tests.postgres_server import PostgresServer

PAGES = {"SQLite script": "tutorial.md", "FastAPI and PostgreSQL": "fastapi.md", "Django and SQLite": "django.md"}
PORT = "8000"
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def script(page: Path, url: str) -> tuple[str, list[Command]]:
    """What the reader does, for bash; the output of each command goes into a file with its number."""
    lines, typed = ["set -e", "ID=", "server="], list[Command]()
    for block in blocks(page):
        if block.title:
            write = ">>" if block.title.endswith("settings.py") else ">"  # "At the end of the settings"
            lines += [f"cat {write} {shlex.quote(block.title)} <<'THE END'", block.text.rstrip("\n"), "THE END"]
        for command in commands(block.text) if block.language == "console" else ():
            number, line = len(typed), command.line.replace("postgresql://localhost/shop", url)
            typed.append(command)
            if line.startswith(SERVERS):
                lines += [f"{line} > {number}.out 2>&1 &", "server=$!"]
                lines += [
                    f"until curl --silent --output /dev/null 127.0.0.1:{PORT}; do kill -0 $server; sleep 0.1; done"
                ]
            else:
                lines += [f"{re.sub(r'/ID$', '/$ID', line)} > {number}.out 2>&1 || {{ cat {number}.out; exit 1; }}"]
                lines += [f"ID=$(grep -oE -m 1 '{UUID}' {number}.out || echo $ID)"]
    return "\n".join([*lines, "[ -z $server ] || kill $server", ""]), typed


def follow(page: Path, python: str, url: str) -> float:
    """The seconds that the machine took; an error names the first command that showed something else."""
    with TemporaryDirectory() as home:
        folder, programs = Path(home, "empty"), Path(home, "programs")
        folder.mkdir()
        programs.mkdir()
        (programs / "python3").symlink_to(python)
        kept = {name: os.environ[name] for name in ("HOME", "PGPASSWORD") if name in os.environ}
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        pip["PIP_FIND_LINKS"] = f"{ROOT / 'dist'} {pip.get('PIP_FIND_LINKS', '')}"
        environment = {**kept, **pip, "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        text, typed = script(page, url)
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - begun
        if done.returncode != 0:
            raise SystemExit(f"{page.name}: {done.stdout}{done.stderr}")
        for number, command in enumerate(typed):
            shown = (folder / f"{number}.out").read_text(encoding="utf-8")
            if not seen(command.expected, shown):
                raise SystemExit(f"{page.name}: $ {command.line}\n{shown}\ndoes not show {command.expected}")
        return seconds


def main(pythons: list[str]) -> None:
    """Follow each page with each interpreter."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        for python in pythons:
            version = subprocess.run([python, "--version"], check=True, capture_output=True, text=True).stdout.strip()
            for nth, (journey, name) in enumerate(PAGES.items()):
                url = server.create_database(f"shop_{nth}")
                print(f"{version}  {journey}: {follow(ROOT / 'docs' / name, python, url):.0f} s", flush=True)  # noqa: T201
                server.drop_database(f"shop_{nth}")


if __name__ == "__main__":
    main([str(Path(each).absolute()) for each in sys.argv[1:]] or [os.path.realpath(sys.executable)])
