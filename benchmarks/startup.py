"""How long from starting `reltask worker` to the first line of its first job?

    python -m benchmarks.startup [--quick]

The app is a module of a few lines, as a user would write it; the job is due already. The time includes the interpreter,
all imports, the connections, and the claim. reltask's own modules are compiled, as an installer leaves them: here they
are a source tree, and an environment that writes no bytecode would compile them at every start.
"""

from __future__ import annotations

import compileall
import sys
import time
from functools import partial

from benchmarks.contestants import RELTASK
from benchmarks.contestants.process import Effects
from benchmarks.environments import ROOT
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Place, Stage, Work, started

APP = """
from benchmarks.contestants.process import Effects
from reltask import App

app = App({url!r})
ran = Effects({effects!r}).ran


@app.task
async def touch(number: int) -> None:
    ran(number)
"""
LAUNCH = "import sys; sys.path[:0] = {path!r}; from reltask.cli import main; main()"


def cells(bench: Bench) -> list[Cell]:
    """On both databases."""
    compileall.compile_dir(ROOT / "src", quiet=1)
    rounds = 3 if bench.quick else 15
    return [
        Cell("PostgreSQL", RELTASK.name, partial(on_postgres, bench.stage), rounds),
        Cell("SQLite", RELTASK.name, partial(on_sqlite, bench.stage), rounds),
    ]


def on_postgres(stage: Stage) -> Measures:
    """In a database of its own."""
    with stage.database(RELTASK) as place:
        return start(stage, place)


def on_sqlite(stage: Stage) -> Measures:
    """In a file of its own."""
    with stage.file(RELTASK) as place:
        return start(stage, place)


def start(stage: Stage, place: Place) -> Measures:
    """Milliseconds from exec to the body."""
    file = Effects.create(stage.directory / "effects", 1)
    (stage.directory / "first.py").write_text(APP.format(url=place.url, effects=str(file)), encoding="utf-8")
    stage.enqueue(RELTASK, place, "one", range(1))
    command = [sys.executable, "-c", LAUNCH.format(path=[str(stage.directory), str(ROOT)]), "worker", "first:app"]
    began = time.monotonic_ns()
    with started([command]) as children:
        work = Work(RELTASK.name, children, [Effects(file)])
        try:
            work.wait_until(lambda: work.ran == 1)
        finally:
            children[0].process.terminate()
    return {"ms": (work.began(range(1))[0] - began) / 1e6}


QUESTION = Question("startup", "From exec to the first job", cells)

if __name__ == "__main__":
    main(QUESTION)
