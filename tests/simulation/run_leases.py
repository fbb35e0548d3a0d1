"""Run histories of leases: `python -m tests.simulation.run_leases 1 2 3` or `--seeds 1000 --from 0 --jobs 2`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

from tests.simulation.invariants import Violation
from tests.simulation.leases import LeaseDatabase, LeaseWorld
from tests.simulation.run import Verdict, scratch, tidy

COUNTED = ("terms", "writes", "refused", "LeaseLost", "LeaseResigned", "LeaseLeftToExpire")


def run_seed(seed: int, database: LeaseDatabase) -> Verdict:
    """One history, from its seed to its verdict."""
    world = LeaseWorld(seed, database)
    broken, detail = None, ""
    try:
        world.run()
    except Violation as violation:
        broken, detail = violation.invariant, str(violation)
    except Exception as error:  # noqa: BLE001 - anything unexpected is a finding too
        broken, detail = type(error).__name__, "".join(traceback.format_exception(error))
    faults = world.faults + Counter({"bites": sum(candidate.line.bites for candidate in world.candidates)})
    return Verdict(seed, broken, detail, world.trace(), faults, world.counts)


def run_seeds(seeds: list[int]) -> list[Verdict]:
    """Several seeds in this process. A seed does not influence the next one."""
    with tempfile.TemporaryDirectory(dir=scratch()) as name, closing(LeaseDatabase(Path(name))) as database, tidy():
        return [run_seed(seed, database) for seed in seeds]


def run_parallel(seeds: list[int], jobs: int) -> list[Verdict]:
    """Seeds over several processes, in chunks."""
    if jobs == 1:
        return run_seeds(seeds)
    chunks = [seeds[start : start + 25] for start in range(0, len(seeds), 25)]
    with ProcessPoolExecutor(jobs) as pool:
        return [verdict for part in pool.map(run_seeds, chunks) for verdict in part]


def report(verdicts: list[Verdict], seconds: float) -> str:
    """Coverage, and broken invariants."""
    counts: Counter[str] = sum((verdict.counts for verdict in verdicts), Counter())
    faults: Counter[str] = sum((verdict.faults for verdict in verdicts), Counter())
    number = len(verdicts)
    lines = [
        f"{number} histories of leases in {seconds:.1f} s ({number / seconds * 60:.0f} per minute)",
        "per seed: " + ", ".join(f"{counts[name] / number:.1f} {name}" for name in COUNTED),
        "faults per seed: " + ", ".join(f"{name} {count / number:.2f}" for name, count in sorted(faults.items())),
    ]
    return "\n".join(lines + [f"seed {v.seed}: {v.detail}" for v in verdicts if v.broken is not None])


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
