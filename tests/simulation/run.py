"""Run seeds: `python -m tests.simulation.run 1 2 3` or `--seeds 1000 --from 0 --jobs 2`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from reltask.stores.sqlite.adapter import SqliteStore
from tests.simulation.invariants import Violation
from tests.simulation.world import World

EFFECTS = "create table effects (job_id text, slot_no integer, fence integer, kind text)"


class Verdict(NamedTuple):
    """What came of one seed."""

    seed: int
    broken: str | None
    """The invariant's name, or the kind of the unexpected error."""
    detail: str
    trace: str
    faults: Counter[str]
    counts: Counter[str]


def scratch() -> str | None:
    """Memory, where the machine offers it as a file system: simulations write a great deal."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def make_template(directory: Path) -> Path:
    """A database with the tables, to copy for each seed."""
    path = directory / "template.db"
    store = SqliteStore(str(path), inline=True)

    async def build() -> None:
        await store.open()
        store._session.connection().execute(EFFECTS)
        await store.close()

    asyncio.run(build())
    return path


def run_seed(seed: int, directory: Path, template: Path) -> Verdict:
    """One history, from its seed to its verdict."""
    world = World(seed, directory, template=template)
    broken, detail = None, ""
    try:
        world.run()
    except Violation as violation:
        broken, detail = violation.invariant, str(violation)
    except Exception as error:  # noqa: BLE001 - anything unexpected is a finding too
        broken, detail = type(error).__name__, "".join(traceback.format_exception(error))
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(world.path + suffix).unlink(missing_ok=True)
    faults = world.faults + Counter({"bites": sum(node.line.bites for node in world.nodes)})
    return Verdict(seed, broken, detail, world.trace(), faults, world.inspector.counts)


def run_seeds(seeds: list[int]) -> list[Verdict]:
    """Several seeds in this process; one does not influence the next."""
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        directory = Path(name)
        template = make_template(directory)
        verdicts = []
        sys.unraisablehook = lambda _: None  # coroutines of killed processes complain when they are thrown away
        gc.disable()
        for number, seed in enumerate(seeds, start=1):
            verdicts.append(run_seed(seed, directory, template))
            if number % 10 == 0:
                gc.collect()
        gc.collect()
        gc.enable()
        sys.unraisablehook = sys.__unraisablehook__
        return verdicts


def run_parallel(seeds: list[int], jobs: int) -> list[Verdict]:
    """Seeds over several processes, in chunks."""
    if jobs == 1:
        return run_seeds(seeds)
    chunks = [seeds[start : start + 25] for start in range(0, len(seeds), 25)]
    with ProcessPoolExecutor(jobs) as pool:
        return [verdict for part in pool.map(run_seeds, chunks) for verdict in part]


def report(verdicts: list[Verdict], seconds: float) -> str:
    """Coverage, and what was broken."""
    counts: Counter[str] = sum((verdict.counts for verdict in verdicts), Counter())
    faults: Counter[str] = sum((verdict.faults for verdict in verdicts), Counter())
    number = len(verdicts)
    lines = [
        f"{number} seeds in {seconds:.1f} s ({number / seconds * 60:.0f} per minute)",
        "per seed: "
        + ", ".join(f"{counts[name] / number:.1f} {name}" for name in ("claims", "settlements", "reclaims")),
        "faults per seed: " + ", ".join(f"{name} {count / number:.2f}" for name, count in sorted(faults.items())),
    ]
    lines += [f"seed {v.seed}: {v.detail}" for v in verdicts if v.broken is not None]
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = options.seed or list(range(options.first, options.first + options.seeds))
    started = time.monotonic()
    verdicts = run_parallel(seeds, 1 if options.seed else options.jobs)
    print(report(verdicts, time.monotonic() - started))  # noqa: T201 - this is what the command is for
    return 1 if any(verdict.broken for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
