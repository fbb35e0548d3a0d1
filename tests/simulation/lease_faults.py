"""The faults of a history of leases, and the actions of an operator, chosen by the seed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from reltask.errors import DatabaseError
from reltask.model.lease import Term
from tests.simulation.network import Line, Trouble

if TYPE_CHECKING:
    from tests.simulation.leases import Candidate, LeaseWorld  # for types only: the world creates its faults


class LeaseFaults:
    """The faults of one history."""

    def __init__(self, world: LeaseWorld) -> None:
        self.world = world
        self.rng = world.rng
        self.may_jump = self.rng.random() < 0.3
        """Whether the database's clock jumps in this history.

        Then two candidates may trust themselves.
        """

    async def strike(self) -> None:
        kinds = {self.crash: 2, self.pause: 5, self.trouble: 8, self.jump: 1, self.take_away: 1, self.leave: 1}
        (kind,) = self.rng.choices(list(kinds), weights=list(kinds.values()))
        if self.world.living():
            self.world.note(kind.__name__)
            await kind(self.rng.choice(self.world.living()))

    async def crash(self, candidate: Candidate) -> None:
        """SIGKILL: no further step; open transactions are rolled back."""
        self.world.faults["crash"] += 1
        candidate.alive, candidate.crashed = False, True
        self.world.loop.kill(candidate.name)
        for transaction in candidate.line.open_transactions:
            transaction.connection.close()
        self.world.loop.spawn("world", self.start_later())

    async def leave(self, candidate: Candidate) -> None:
        """SIGTERM: resigns, and is started again."""
        self.world.faults["shutdown"] += 1
        candidate.alive = False
        candidate.leader.finish()
        self.world.loop.spawn("world", self.start_later())

    async def start_later(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, 3))
        self.world.start()

    async def pause(self, candidate: Candidate) -> None:
        self.world.faults["pause"] += 1
        self.world.loop.pause(candidate.name)
        self.world.loop.spawn("world", self.resume_later(candidate))

    async def resume_later(self, candidate: Candidate) -> None:
        await asyncio.sleep(self.rng.choice([0.2, 0.5, 1.5, 2.5, 6.0]))
        self.world.loop.resume(candidate.name)

    async def trouble(self, candidate: Candidate) -> None:
        line = candidate.line
        line.trouble = self.rng.choice([t for t in Trouble if t not in (Trouble.NONE, Trouble.ROWS_HELD)])
        line.share = self.rng.choice([0.3, 1.0, 1.0])
        self.world.faults[line.trouble] += 1
        self.world.loop.spawn("world", self.repair_later(line))

    async def repair_later(self, line: Line) -> None:
        await asyncio.sleep(self.rng.choice([0.5, 1.0, 3.0, 6.0]))
        line.trouble = Trouble.NONE

    async def jump(self, _: Candidate) -> None:
        """The database's clock jumps.

        Leases may end early, so two may trust themselves; nothing else may happen.
        """
        if self.may_jump:
            self.world.faults["database clock"] += 1
            self.world.offset += timedelta(seconds=self.rng.choice([-5, -1, 1, 5]))

    async def take_away(self, _: Candidate) -> None:
        """An operator releases the lease, with the term that was shown."""
        row = self.world.row()
        if row is None:
            return
        self.world.faults["operator"] += 1
        self.world.taken_away.add(row["term"])
        with suppress(DatabaseError):
            await self.world.operator().release_lease(Term(row["name"], row["term"]))
