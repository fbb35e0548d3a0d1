"""Count how far a reader has to walk: the functions and files that one enqueue, and one job, pass through.

    python -m tools.walks [--list]

Both run on a real PostgreSQL, once to warm up and once under a profiler that notes each Python function of reltask that
is entered: for the enqueue from the call to the returned handle, for the job from the worker's wake-up to the recorded
success. A store sends at most one signal per 10 ms: here the enqueue sends its own. Generators and coroutines count
once, however often they are resumed; comprehensions and lambdas are part of the function that they stand in. Heartbeats
are not part of either walk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import reltask
from reltask import App, events
from reltask.stores.postgres.connections import GAP
from reltask.stores.postgres.schema import migrate_postgres
from tests.postgres_server import PostgresServer

HOME = Path(reltask.__file__).parent


@contextlib.contextmanager
def noted(seen: dict[CodeType, None]) -> Iterator[None]:
    """Note every function of reltask that is entered in this block, on any thread that begins or runs here."""

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(HOME)) and not code.co_name.startswith("<"):
            seen[code] = None

    threading.setprofile_all_threads(note) if hasattr(threading, "setprofile_all_threads") else sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def report(title: str, seen: dict[CodeType, None], *, listed: bool) -> None:
    """Print the counts and, if asked for, the walk."""
    walk = [(str(Path(code.co_filename).relative_to(HOME)), code.co_qualname) for code in seen]
    print(f"{title}: {len(walk)} functions in {len({file for file, _ in walk})} files")
    for file, name in walk if listed else ():
        print(f"    {file:34} {name}")


async def walk_enqueue(app: App, task: Any) -> dict[CodeType, None]:
    """One enqueue from a loop that has connections of its own, as a web server has."""
    seen: dict[CodeType, None] = {}
    async with app.producer():
        await task.enqueue(1)
        await asyncio.sleep(5 * GAP)
        with noted(seen):
            await task.enqueue(2)
    return seen


async def walk_job(app: App, task: Any) -> dict[CodeType, None]:
    """One job that becomes due while an idle worker sleeps."""
    seen: dict[CodeType, None] = {}
    ended = asyncio.Queue[None]()
    app.subscribe(lambda event: ended.put_nowait(None) if isinstance(event, events.RunSucceeded) else None)
    async with app.worker():
        for _ in range(2):  # what `walk_enqueue` left behind
            await ended.get()
        await task.using(delay="1s").enqueue(2)
        await asyncio.sleep(0.5)
        with noted(seen):
            await ended.get()
    return seen


async def main() -> None:
    """Start a server, and print both walks."""
    parser = argparse.ArgumentParser(description="Count the functions and files of one enqueue and of one job.")
    parser.add_argument("--list", action="store_true", help="print the functions in the order in which they are met")
    listed = parser.parse_args().list
    with PostgresServer() as server:
        url = server.create_database("walks")
        app = App(url, settings={"maintenance.coordination": "off"})

        @app.task
        async def step(number: int) -> None: ...

        await migrate_postgres(url)
        report("one enqueue", await walk_enqueue(app, step), listed=listed)
        report("one job, from claim to ledger", await walk_job(app, step), listed=listed)
        app.close()


if __name__ == "__main__":
    asyncio.run(main())
