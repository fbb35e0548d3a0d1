"""The contestants, and what the measuring process has to know about each.

A contestant is a module here that `process.py` runs in a process of its own, with the interpreter of its own
environment. It imports nothing of the others.

Each contestant is set up as its documentation advises for many short jobs, with asynchronous bodies where it has them,
uvloop where it runs on asyncio, and the concurrency below. None was tuned beyond that: 100 and 1000 were compared for
pgqueuer, the others' are a choice. A slow contestant gets fewer jobs, so that a round takes seconds.
"""

from __future__ import annotations

from typing import NamedTuple


class Contestant(NamedTuple):
    """One queue."""

    name: str
    unfinished: str
    """A query: how many jobs are not done yet, as the database knows it."""
    jobs: int
    """How many a quick drain takes; a full one takes FULL times as many."""
    concurrency: int
    peer: bool = True
    """It has an environment of its own."""
    slow: bool = False
    """A quick run asks it once."""
    bulk: bool = True
    """It has a way to enqueue many at once."""
    program: str = ""
    """The module, where it is not the name's."""

    @property
    def module(self) -> str:
        return f"benchmarks.contestants.{self.program or self.name}"


FULL = 5

FLOOR = Contestant("floor", "select count(*) from floor_jobs", 20_000, 1000, peer=False)
"""Its batches are as large as the largest claim that reltask makes: the stricter reference."""
FLOOR_100 = FLOOR._replace(name="floor_100", concurrency=100, program="floor")
"""The same with batches of 100: shown beside it, because the batch size alone changes the floor a lot."""
RELTASK = Contestant("reltask", "select count(*) from reltask.jobs", 20_000, 1000, peer=False)
PGQUEUER = Contestant("pgqueuer", "select count(*) from pgqueuer", 10_000, 1000)
OBAN = Contestant("oban", "select count(*) from oban_jobs where state <> 'completed'", 3_000, 1000)
SAQ = Contestant(
    "saq", "select count(*) from saq_jobs where status in ('queued', 'active')", 600, 100, slow=True, bulk=False
)
PROCRASTINATE = Contestant(
    "procrastinate", "select count(*) from procrastinate_jobs where status in ('todo', 'doing')", 300, 100, slow=True
)
CHANCY = Contestant(
    "chancy", "select count(*) from chancy_jobs where state in ('pending', 'running')", 300, 100, slow=True
)
DBOS = Contestant(
    "dbos",
    "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')",
    300,
    100,
    slow=True,
    bulk=False,
)

ABSURD = Contestant(
    "absurd-sdk",
    "select count(*) from absurd.t_touches where state in ('pending', 'running', 'sleeping')",
    100,
    100,
    slow=True,
    bulk=False,
    program="absurd_steps",
)
"""Measured by `benchmarks/durable.py` alone: it has functions of steps, and no plain jobs."""

ON_POSTGRES = [FLOOR, RELTASK, PGQUEUER, OBAN, SAQ, PROCRASTINATE, CHANCY, DBOS]

RELTASK_ON_SQLITE = Contestant("reltask", "select count(*) from reltask_jobs", 5_000, 1000, peer=False)
HUEY = Contestant("huey", "select count(*) from task", 2_000, 1, bulk=False)

ON_SQLITE = [RELTASK_ON_SQLITE, HUEY]

PEERS = [contestant for contestant in [*ON_POSTGRES, ABSURD, *ON_SQLITE] if contestant.peer]
