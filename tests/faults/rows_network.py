"""Rows: the network between some workers and PostgreSQL. One worker always has a good one.

Bodies of a worker that is cut off must have ended before another worker starts them: that is what its deadline is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from uuid import UUID

from tests.faults.proxy import Kind
from tests.faults.stage import Stage

OUTAGE = 1.3
"""How long workers are cut off, in lock timeouts."""
SPIKE = 0.27
"""By how much each packet is late, in lock timeouts: longer than a heartbeat may take."""
_turns = count()


def refused(stage: Stage) -> float:
    """Nobody listens, and existing connections are reset."""
    return _cut_off(stage, stage.proxy.refuse, stage.proxy.listen_again)


def black_hole(stage: Stage) -> float:
    """Nothing arrives in either direction, and nobody is told; afterwards everything arrives late."""
    return _cut_off(stage, stage.proxy.black_hole, stage.proxy.heal)


def reset(stage: Stage) -> float:
    """Every connection is reset, and every new one."""
    return _cut_off(stage, stage.proxy.reset, stage.proxy.heal)


def half_open(stage: Stage) -> float:
    """Requests arrive and answers do not, or the other way round: by turns."""
    requests = next(_turns) % 2 == 0
    return _cut_off(stage, lambda: stage.proxy.half_open(requests=requests), stage.proxy.heal)


def latency(stage: Stage) -> float:
    """Every packet takes long for a while: beats time out, and nobody is wrongly declared dead for good."""
    return _cut_off(stage, lambda: stage.proxy.slow(SPIKE * stage.lock_timeout), stage.proxy.heal)


def _cut_off(stage: Stage, inflict: Callable[[], None], lift: Callable[[], None]) -> float:
    """Two workers hold gated bodies; one is cut off past its lock, with more work to come."""
    _crew(stage)
    gate = stage.gate()
    held = stage.enqueue(6, before=str(gate))
    for job in held:
        stage.begun(job)
    inflict()
    more = stage.enqueue(4)
    time.sleep(OUTAGE * stage.lock_timeout)  # the length of the fault
    gate.touch()
    lift()
    since = stage.now()
    recovery = stage.recovered(held + more, since)
    overlapping = stage.cluster.report().overlapping
    assert not overlapping, f"bodies ran beside their successors: {overlapping}"
    return recovery


def _crew(stage: Stage) -> None:
    """One worker behind the proxy, one with a good network; each has room for half of the held bodies."""
    living, room = [worker for worker in stage.cluster.workers if worker.alive], {"concurrency": "4"}
    if not living:
        living = stage.start(1, room) + stage.start(1, room | stage.direct())
    assert len(living) == 2, "a worker has died of its network"


def answer_cut(stage: Stage) -> float:
    """The answer to a claim, beat, completion or COMMIT is lost, by turns, under load."""
    return _struck(stage, "cut")


def request_late(stage: Stage) -> float:
    """The same statements arrive after their sender's connection broke: at once, or after everything is done."""
    return _struck(stage, "late")


STRUCK = ("claim_jobs", "heartbeat_jobs", "complete_jobs", "COMMIT")


def _struck(stage: Stage, kind: Kind) -> float:
    turn = next(_turns)
    stage.keep(2, {"concurrency": "3"})
    gate = stage.gate()
    held = stage.enqueue(2, before=str(gate))  # so that there is something to beat for
    aim = stage.proxy.aim(STRUCK[turn % len(STRUCK)], kind)
    jobs: list[UUID] = held + stage.enqueue(4)
    if aim.verb != "heartbeat_jobs":
        gate.touch()
    aim.struck()
    since = stage.now()
    gate.touch()
    if turn % 8 < 4:
        aim.deliver()
    recovery = stage.recovered(jobs, since)
    aim.deliver()
    aim.landed()
    return recovery
