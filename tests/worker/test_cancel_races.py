"""Cancel against completion, 200 times, on real databases."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from reltask import App, Cancellation, Context, JobCancelled, Outcome
from reltask.producer.job import Job
from tests.worker.worker_harness import working

pytestmark = pytest.mark.slow
RACES = 200


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_the_answer_is_what_the_ledger_says(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """`cancelled`: no body ran. `ended`: it had succeeded. `stopping`: it succeeded if its body came to its end, and
    was cancelled if it did not. Each job ends once.
    """
    url = f"sqlite:///{tmp_path / 'races.db'}" if database == "sqlite" else request.getfixturevalue("postgres_url")
    app, rng = App(url, settings={"worker.concurrency": 8}), random.Random(1)
    began: set[UUID] = set()
    finished: set[UUID] = set()

    @app.task
    async def race(ctx: Context, seconds: float) -> int:
        began.add(ctx.job_id)
        await asyncio.sleep(seconds)
        finished.add(ctx.job_id)
        return 1

    async def run_one(nth: int) -> tuple[Cancellation, Job[int]]:
        job = await race.enqueue(rng.uniform(0, 0.02))
        await asyncio.sleep(rng.uniform(0, 0.03) if nth % 4 else 0.2)
        return await job.cancel(), job

    async with working(app):
        answers: Counter[Cancellation] = Counter()
        for start in range(0, RACES, 10):
            for answer, job in await asyncio.gather(*(run_one(start + nth) for nth in range(10))):
                answers[answer] += 1
                try:
                    await job.result(timeout="20s")
                except JobCancelled:
                    ended = Outcome.CANCELLED
                else:
                    ended = Outcome.SUCCEEDED
                assert [run.outcome for run in await job.runs() if run.outcome.ends_slot] == [ended]
                assert (ended is Outcome.SUCCEEDED) == (job.id in finished)
                if answer is Cancellation.CANCELLED:
                    assert (ended, job.id in began) == (Outcome.CANCELLED, False)
                elif answer is Cancellation.ENDED:
                    assert ended is Outcome.SUCCEEDED
    assert answers[Cancellation.ENDED] > 0
    assert answers[Cancellation.STOPPING] + answers[Cancellation.CANCELLED] > 0
