"""The faults of a history, and the actions of its operators, chosen by the seed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from reltask.model.control import Pause, PauseKind
from tests.simulation.invariants import Disturbance
from tests.simulation.malformed import KINDS, plant
from tests.simulation.malformed import TASK as MALFORMED
from tests.simulation.network import LATEST_ANSWER, HeldRows, Line, Trouble

if TYPE_CHECKING:
    from tests.simulation.world import Node, World  # for types only: the world creates its faults


class Faults:
    """The faults of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng

    async def strike(self) -> None:
        """Cause one fault, or one operator's action."""
        kinds = {
            self.crash: 2,
            self.pause: 4,
            self.line: 8,
            self.outage: 1,
            self.clock: 1,
            self.wall_clock: 2,
            self.shutdown: 1,
            self.operator: 3,
            self.cancel: 2,
            self.pause_lane: 2,
            self.more_work: 2,
        }
        if self.world.has_malformed:
            kinds[self.malformed_row] = 6
        (kind,) = self.rng.choices(list(kinds), weights=list(kinds.values()))
        self.world.note(kind.__name__)
        await kind()

    async def crash(self) -> None:
        if self.world.living():
            self.world.loop.spawn("world", self.world.crash(self.rng.choice(self.world.living())))

    async def pause(self) -> None:
        if self.world.living():
            node = self.rng.choice(self.world.living())
            which = self.rng.choice([[node.name, node.beat], [node.name], [node.beat]])
            self.world.pause(which, self.rng.choice([0.5, 3.0, 9.0, 12.0, 25.0]))

    async def line(self) -> None:
        if not self.world.living():
            return
        node = self.rng.choice(self.world.living())
        line = node.line
        kinds = [trouble for trouble in Trouble if trouble is not Trouble.NONE]
        line.trouble = self.rng.choice([*kinds, Trouble.SETTLEMENTS_REFUSED])
        line.share = self.rng.choice([0.3, 1.0, 1.0])
        self.world.faults[line.trouble] += 1
        seconds = self.rng.choice([0.5, 3.0, 8.0, 20.0, 30.0])
        now = self.world.loop.time()
        if line.trouble is Trouble.SETTLEMENTS_REFUSED:
            self.world.unwritable.append(Disturbance(node.name, now, now + seconds))
        elif line.trouble is Trouble.ROWS_HELD:
            self._hold_rows(node, seconds)
        else:
            self.world.troubles.append(Disturbance(node.name, now, now + seconds + LATEST_ANSWER))
            late = LATEST_ANSWER if line.trouble is Trouble.ANSWER_LATE else 0.0
            self.world.unwritable.append(Disturbance(node.name, now, now + seconds + late))
        self.world.loop.spawn("world", self.repair_later([line], seconds))

    def hold_rows(self, node: Node, seconds: float) -> None:
        """Another session locks rows that this process writes, and nothing else is wrong."""
        self.world.faults[Trouble.ROWS_HELD] += 1
        node.line.trouble, node.line.share = Trouble.ROWS_HELD, 1.0
        self._hold_rows(node, seconds)
        self.world.loop.spawn("world", self.repair_later([node.line], seconds))

    def _hold_rows(self, node: Node, seconds: float) -> None:
        now = self.world.loop.time()
        node.line.held = HeldRows(node.line.rng)
        self.world.held.append((Disturbance(node.name, now, now + seconds), node.line.held))

    async def outage(self) -> None:
        """The database restarts: open transactions are lost, and connections are refused for a while."""
        self.world.faults["outage"] += 1
        lines = [node.line for node in self.world.living()]
        self.world.troubles.append(Disturbance("*", self.world.loop.time(), self.world.loop.time() + LATEST_ANSWER))
        for node in self.world.living():
            for transaction in node.line.open_transactions:
                transaction.connection.close()
        for line in lines:
            line.trouble, line.share = Trouble.REFUSED, 1.0
        seconds = self.rng.uniform(0.5, 12)
        self.world.unwritable.append(Disturbance("*", self.world.loop.time(), self.world.loop.time() + seconds))
        self.world.loop.spawn("world", self.repair_later(lines, seconds))

    async def repair_later(self, lines: list[Line], seconds: float) -> None:
        await asyncio.sleep(seconds)
        for line in lines:
            line.trouble = Trouble.NONE

    async def clock(self) -> None:
        """The database's clock jumps.

        Locks may end early, so bodies may overlap; nothing else may happen.
        """
        if self.rng.random() < 0.5:
            return
        self.world.faults["database clock"] += 1
        self.world.clock_jumped = True
        seconds = self.rng.choice([-30, -3, 3, 30])
        self.world.start += timedelta(seconds=seconds)
        if seconds < 0:
            self.world.behind_until = max(self.world.behind_until, self.world.loop.time()) - seconds
        self.world.disturbances.append(Disturbance("*", self.world.loop.time(), self.world.loop.time()))

    async def wall_clock(self) -> None:
        """A worker's wall clock jumps; nothing in reltask reads it."""
        if self.world.living():
            self.world.faults["wall clock"] += 1
            node = self.rng.choice(self.world.living())
            node.wall_offset += timedelta(seconds=self.rng.choice([-7200, -15, 15, 7200]))

    async def shutdown(self) -> None:
        if not self.world.living():
            return
        node = self.rng.choice(self.world.living())
        if node.worker.started:
            self.world.faults["shutdown"] += 1
            self.world.loop.spawn(node.name, self.world.leave(node))

    async def operator(self) -> None:
        rows = sorted(self.world.inspector.rows())
        if not rows:
            return
        job_id = UUID(self.rng.choice(rows))
        action = self.rng.choice(["pause_job", "resume_job", "run_job_now", "retry_job", "discard_job"])
        if action == "discard_job" and job_id not in self.world.enqueued:
            return
        self.world.faults["operator"] += 1
        won = await self.world.as_operator(lambda store: getattr(store, action)(job_id))
        if won and action == "discard_job":
            self.world.discarded.add(job_id)

    async def cancel(self) -> None:
        """A one-off, a recurring job, a durable function or a child, whatever it does now."""
        rows = sorted(self.world.inspector.rows())
        if not rows:
            return
        job_id = UUID(self.rng.choice(rows))
        self.world.faults["cancel"] += 1
        answer = await self.world.as_operator(lambda store: store.cancel_job(job_id))
        if answer is not None:
            self.world.discarded.add(job_id)
            await self.world.as_operator(lambda store: store.signal_cancel([job_id]))

    async def pause_lane(self) -> None:
        """An operator pauses a task, or the queue, and resumes it after a while."""
        queue = Pause(kind=PauseKind.QUEUE, name="default", paused_by="operator")
        tasks = [
            Pause(kind=PauseKind.TASK, name=name, paused_by="operator") for name in self.world.app.registry.names()
        ]
        pause = self.rng.choice([queue, *self.rng.sample(tasks, 4)])
        self.world.faults["paused lanes"] += 1
        await self.world.as_operator(lambda store: store.add_pause(pause))
        self.world.loop.spawn("world", self.resume_lane(pause, self.rng.choice([0.5, 5.0, 20.0])))

    async def resume_lane(self, pause: Pause, seconds: float) -> None:
        await asyncio.sleep(seconds)

        async def resume(store: Any) -> None:
            if await store.end_pause(pause.kind, pause.name):
                await store.signal()

        await self.world.as_operator(resume)

    async def malformed_row(self) -> None:
        """A row that no worker can run, inserted past the constraints."""
        job_id = UUID(int=self.rng.getrandbits(128), version=4)
        column, value = self.rng.choice(KINDS)
        self.world.faults["malformed rows"] += 1

        async def insert(store: Any) -> None:
            plant(self.world.database, job_id, column, value)
            self.world.inspector.look_again()
            self.world.enqueued[job_id] = MALFORMED
            await store.signal()

        await self.world.as_operator(insert)

    async def more_work(self) -> None:
        await self.world.enqueue(self.rng.randint(1, 3))
