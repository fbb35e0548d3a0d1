"""All questions, one after another: `make bench`, or `make bench QUICK=1`.

    python -m benchmarks [--quick] [--publish] [--only drain,pickup]

Every run writes results/latest.json, except one with `--only`, which just prints. A full run also renews what
docs/performance.md shows; a quick one does so only with `--publish`.
"""

# ruff: noqa: T201 - a program's output

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from benchmarks import (
    bloat,
    drain,
    durable,
    enqueue,
    environments,
    growth,
    heartbeat,
    idle,
    limits,
    pickup,
    processes,
    punctuality,
    report,
    sqlite,
    startup,
)
from benchmarks.harness import Bench, Question, ask
from benchmarks.machine import machine, server_settings, versions
from benchmarks.stage import Stage, open_stage

QUESTIONS: list[Question] = [
    module.QUESTION
    for module in (
        drain,
        durable,
        enqueue,
        pickup,
        punctuality,
        idle,
        growth,
        bloat,
        limits,
        heartbeat,
        processes,
        sqlite,
        startup,
    )
]
METHOD = (
    "One server and one machine for all contestants; a fresh database for each try; contestants take turns, every "
    "other round backwards; medians with least and most of the rounds; bodies write what ran to shared memory, and a "
    "job that did not run, or ran twice, fails its measurement."
)


def measure(stage: Stage, questions: list[Question], *, quick: bool) -> dict[str, Any]:
    """Ask all questions; returns the result as it is stored."""
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "quick": quick, "method": METHOD, "machine": machine()}
    began = time.monotonic()
    rows = ask(questions, Bench(stage, quick))
    ratios, missing = report.ratios(rows)
    return {
        **about,
        "seconds": round(time.monotonic() - began),
        "versions": versions(stage.server),
        "server": server_settings(),
        "ratios": ratios,
        "missing": missing,
        "rows": msgspec.to_builtins(rows),
    }


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")))
    parser.add_argument("--only", help="names of questions, by comma")
    parser.add_argument("--publish", action="store_true", help="renew what the documentation shows")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else [question.name for question in QUESTIONS]
    questions = [question for question in QUESTIONS if question.name in names]
    environments.main()
    with open_stage() as stage:
        result = measure(stage, questions, quick=given.quick)
    print(report.block(result, questions))
    if not given.only:
        report.write(result)
    if given.publish or not (given.quick or given.only):
        report.publish(result, questions)


if __name__ == "__main__":
    main()
