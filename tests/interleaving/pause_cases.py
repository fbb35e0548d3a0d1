"""Pauses of queues and tasks beside claims. A claim reads the pauses in its own snapshot, and never waits for one."""

from __future__ import annotations

from reltask.model.control import Pause, PauseKind
from tests.interleaving.driver import Driver, Session
from tests.interleaving.operations import A, B, Operation, claim
from tests.interleaving.steps import Case, committed, do, expect, opened, stopped

PAUSES = {
    "queue": Pause(kind=PauseKind.QUEUE, name="default", paused_by="ada"),
    "task": Pause(kind=PauseKind.TASK, name="greet", paused_by="ada"),
}


def pause(what: Pause) -> Operation:
    async def statement(session: Session) -> bool:
        return await session.store.add_pause(what)

    return Operation("pause lane", (statement,), jobs=())


def resume(what: Pause) -> Operation:
    async def statement(session: Session) -> bool:
        return await session.store.end_pause(what.kind, what.name)

    return Operation("resume lane", (statement,), jobs=())


def a_claim_meets_a_pause(what: Pause) -> Case:
    """A claim that began before the pause may win; every claim that begins after its commit takes nothing."""

    async def case(driver: Driver) -> None:
        async with stopped(claim(1), driver.first) as answer:
            expect("paused", await committed(pause(what), driver.second), True)
        expect("the claim had begun", [one.job_id for one in await answer], [A])
        expect("nothing is claimed", await committed(claim(1), driver.first), [])
        expect("by no worker", await committed(claim(1), driver.second), [])

    return case


def a_pause_that_is_not_committed(what: Pause) -> Case:
    """No claim waits for the pause; from its commit on nothing is claimed."""

    async def case(driver: Driver) -> None:
        async with opened(driver.first):
            await do(pause(what), driver.first)
            expect("the claim does not wait", len(await committed(claim(1), driver.second)), 1)
        expect("now it is paused", await committed(claim(1), driver.second), [])

    return case


def a_resume_that_is_not_committed(what: Pause) -> Case:
    """No claim waits for the resume, and none sees it before its commit."""

    async def case(driver: Driver) -> None:
        await committed(pause(what), driver.first)
        async with opened(driver.first):
            await do(resume(what), driver.first)
            expect("still paused", await committed(claim(1), driver.second), [])
        (first,) = await committed(claim(1), driver.second)
        (second,) = await committed(claim(1), driver.first)
        expect("both run again", [first.job_id, second.job_id], [A, B])

    return case


PAUSE_CASES = {
    **{f"a claim meets a pause of a {kind}": a_claim_meets_a_pause(what) for kind, what in PAUSES.items()},
    **{f"a pause of a {kind} is not committed": a_pause_that_is_not_committed(what) for kind, what in PAUSES.items()},
    **{f"a resume of a {kind} is not committed": a_resume_that_is_not_committed(what) for kind, what in PAUSES.items()},
}
