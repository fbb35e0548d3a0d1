"""Run seeds: `python -m tests.simulation.run 1 2 3` or `--seeds 1000 --from 0 --jobs 2`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.simulation.database import Database
from tests.simulation.invariants import Violation
from tests.simulation.world import World

CHUNK = 25
"""Seeds given to a process at a time."""
PROGRESS = 1000
"""Seeds between two progress lines."""
COVERED = ("claims", "settlements", "reclaims", "recordings", "suspensions", "limited claims")
"""What is counted per seed."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""From glibc's malloc.h."""


class Verdict(NamedTuple):
    """The result of one seed."""

    seed: int
    broken: str | None
    """The invariant's name, or the kind of the unexpected error."""
    detail: str
    trace: str
    faults: Counter[str]
    counts: Counter[str]


def scratch() -> str | None:
    """A file system in memory, if there is one: simulations write a lot."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_seed(seed: int, database: Database) -> Verdict:
    """One history, from its seed to its verdict."""
    world = World(seed, database)
    broken, detail = None, ""
    try:
        world.run()
    except Violation as violation:
        broken, detail = violation.invariant, str(violation)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - anything unexpected is a finding too
        broken, detail = type(error).__name__, "".join(traceback.format_exception(error))
    faults = world.faults + Counter({"bites": sum(node.line.bites for node in world.nodes)})
    return Verdict(seed, broken, detail, world.trace(), faults, world.inspector.counts)


def run_each(seeds: Iterable[int]) -> Generator[Verdict, None, None]:
    """One seed after the other in this process. A seed does not influence the next one."""
    with tempfile.TemporaryDirectory(dir=scratch()) as name, closing(Database(Path(name))) as database, tidy():
        for seed in seeds:
            yield run_seed(seed, database)


def run_seeds(seeds: list[int]) -> list[Verdict]:
    """Several seeds in this process."""
    return list(run_each(seeds))


def keep_memory() -> None:
    """Keep the memory that SQLite frees.

    SQLite allocates a hundred kilobytes for every query that needs a temporary table. glibc would
    return them to the kernel and fetch them again, which takes a quarter of a history's time.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
        mallopt(M_MMAP_THRESHOLD, 1 << 30)


@contextmanager
def tidy() -> Iterator[None]:
    """Collect garbage between histories only, never inside one.

    Otherwise coroutines of killed processes would run their last steps in the middle of a history.
    Their warnings are suppressed. Objects from before are frozen, so that they are not scanned
    again.
    """
    keep_memory()
    gc.freeze()
    gc.disable()
    sys.unraisablehook = lambda _: None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        yield
        gc.collect()
    sys.unraisablehook = sys.__unraisablehook__
    gc.enable()
    gc.unfreeze()


def run_parallel(seeds: list[int], jobs: int) -> Iterator[Verdict]:
    """Seeds over several processes, in chunks. Verdicts come in the order of their seeds."""
    if jobs == 1:
        yield from run_each(seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=leave_interrupts_to_the_parent) as pool:
        try:
            for part in pool.map(run_seeds, chunks(seeds)):
                yield from part
        finally:
            pool.shutdown(cancel_futures=True)


def leave_interrupts_to_the_parent() -> None:
    """Ctrl+C reaches every process; inside a history it would look like a task that ends its worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def chunks(seeds: list[int]) -> list[list[int]]:
    return [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]


class Tally:
    """The results of many seeds: coverage, and broken invariants."""

    def __init__(self) -> None:
        self.seeds = 0
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.broken: list[Verdict] = []
        self._started = time.monotonic()

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.counts += verdict.counts
        self.faults += verdict.faults
        if verdict.broken is not None:
            self.broken.append(verdict)

    def progress(self) -> str:
        seconds = time.monotonic() - self._started
        pace = f"{self.seeds / seconds * 60:.0f} per minute"
        return f"{self.seeds} seeds in {seconds:.0f} s ({pace}), {len(self.broken)} with a violation"

    def coverage(self) -> str:
        counts = [f"{self.counts[name] / self.seeds:.1f} {name}" for name in COVERED]
        bites = f"{self.faults['bites'] / self.seeds:.1f} calls bitten by a fault"
        faults = [f"{name} {n / self.seeds:.2f}" for name, n in sorted(self.faults.items()) if name != "bites"]
        return f"per seed: {', '.join([*counts, bites])}\nfaults per seed: {', '.join(faults)}"

    def findings(self) -> str:
        return "\n".join(f"seed {verdict.seed}: {verdict.detail}" for verdict in self.broken)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = options.seed or list(range(options.first, options.first + options.seeds))
    tally = Tally()
    try:
        for verdict in run_parallel(seeds, 1 if options.seed else options.jobs):
            tally.add(verdict)
            if verdict.broken is not None:
                say(f"seed {verdict.seed}: {verdict.detail}")
            if tally.seeds % PROGRESS == 0:
                say(f"up to seed {verdict.seed}: {tally.progress()}")
    except KeyboardInterrupt:
        say(f"Interrupted after seed {seeds[tally.seeds - 1] if tally.seeds else 'none'}.")
    if tally.seeds:
        say(tally.progress())
        say(tally.coverage())
    return 1 if tally.broken or tally.seeds < len(seeds) else 0


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is what the command is for


if __name__ == "__main__":
    sys.exit(main())
