"""Rows: faults of the network between some workers and the database. One worker always has a good one.

Bodies of a worker that is cut off must have ended before another worker starts them. Its deadline
ensures that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from uuid import UUID

from tests.faults.environment import Environment
from tests.faults.proxy import Kind

OUTAGE = 1.3
"""How long workers are cut off, in lock timeouts."""
SPIKE = 0.27
"""The delay of each packet, in lock timeouts: longer than a heartbeat may take."""
_turns = count()


def refused(env: Environment) -> float:
    """Connections are refused, and open ones are reset."""
    return _cut_off(env, env.proxy.refuse, env.proxy.listen_again)


def black_hole(env: Environment) -> float:
    """Nothing arrives in either direction, and no error is reported.

    Afterwards everything arrives late.
    """
    return _cut_off(env, env.proxy.black_hole, env.proxy.heal)


def reset(env: Environment) -> float:
    """Every connection is reset, and every new one."""
    return _cut_off(env, env.proxy.reset, env.proxy.heal)


def half_open(env: Environment) -> float:
    """Requests arrive and answers do not, or the other way round, alternating between trials."""
    requests = next(_turns) % 2 == 0
    return _cut_off(env, lambda: env.proxy.half_open(requests=requests), env.proxy.heal)


def latency(env: Environment) -> float:
    """Every packet is late for a while: heartbeats time out, and workers recover from it."""
    return _cut_off(env, lambda: env.proxy.slow(SPIKE * env.lock_timeout), env.proxy.heal)


def _cut_off(env: Environment, inflict: Callable[[], None], lift: Callable[[], None]) -> float:
    """Two workers hold gated bodies; one is cut off for longer than its lock, with more work to come."""
    _two_workers(env)
    gate = env.gate()
    held = env.enqueue(6, before=str(gate))
    for job in held:
        env.begun(job)
    inflict()
    more = env.enqueue(4)
    time.sleep(OUTAGE * env.lock_timeout)  # the length of the fault
    gate.touch()
    lift()
    since = env.now()
    recovery = env.recovered(held + more, since)
    overlapping = env.cluster.report().overlapping
    assert not overlapping, f"bodies ran beside their successors: {overlapping}"
    return recovery


def _two_workers(env: Environment) -> None:
    """One worker behind the proxy, one with a good network; each has room for half of the held bodies."""
    living, room = [worker for worker in env.cluster.workers if worker.alive], {"concurrency": "4"}
    if not living:
        living = env.start(1, room) + env.start(1, room | env.direct())
    assert len(living) == 2, "a worker has died of its network"


def answer_cut(env: Environment) -> float:
    """The answer to a claim, heartbeat, completion or COMMIT is lost under load, alternating between trials."""
    return _struck(env, "cut")


def request_late(env: Environment) -> float:
    """The same statements arrive after their connection broke: at once, or after everything is done."""
    return _struck(env, "late")


STRUCK = ("claim_jobs", "heartbeat_jobs", "complete_jobs", "COMMIT")


def _struck(env: Environment, kind: Kind) -> float:
    turn = next(_turns)
    env.keep(2, {"concurrency": "3"})
    gate = env.gate()
    held = env.enqueue(2, before=str(gate))  # so that there is something to renew
    aim = env.proxy.aim(STRUCK[turn % len(STRUCK)], kind)
    jobs: list[UUID] = held + env.enqueue(4)
    if aim.verb != "heartbeat_jobs":
        gate.touch()
    aim.struck()
    since = env.now()
    gate.touch()
    if turn % 8 < 4:
        aim.deliver()
    recovery = env.recovered(jobs, since)
    aim.deliver()
    aim.landed()
    return recovery
