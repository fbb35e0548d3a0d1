"""Retry and circuit breaker together, as callers use them, in virtual time.

Each decision alone: test_breaker.py.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.errors import (
    AccessRefused,
    AmbiguousError,
    CircuitOpen,
    ConflictError,
    PermanentError,
    ReltaskError,
    SchemaError,
    SettingsError,
    TransientError,
    UsageError,
)
from reltask.resilience import Policy

T = TypeVar("T")


class Jumps(selectors.DefaultSelector):
    """Moves the time on instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits for something that will never happen"
        self.now += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing else is ready."""

    def __init__(self) -> None:
        self.jumps = Jumps()
        super().__init__(self.jumps)

    def time(self) -> float:
        return self.jumps.now


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class Database:
    """Answers each statement with the next of its answers, and then repeats the last."""

    def __init__(self, *answers: Exception | str, seconds: float = 0.0) -> None:
        self.answers = list(answers)
        self.seconds = seconds
        self.sent: list[float] = []

    async def send(self) -> str:
        self.sent.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(self.seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer


class NoChance(random.Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


def policy(**settings: Any) -> Policy:
    return Policy(clock=LoopClock(), **{"rng": NoChance(), **settings})


async def fail_until_open(guarded: Policy, failures: int = 5) -> None:
    """Open the breaker with single tries."""
    for _ in range(failures):
        with pytest.raises(AmbiguousError):
            await guarded.call("claim_jobs", Database(AmbiguousError("lost")).send, resend_ambiguous=False)
    assert guarded.state == "open"


# How long to wait


def test_four_retries_after_1_2_4_8_seconds() -> None:
    """The defaults are the requirements' own numbers: one try and four retries."""

    async def scenario() -> list[float]:
        database = Database(TransientError("away"))
        with pytest.raises(TransientError):
            await policy(breaker_failures=100).call("claim_jobs", database.send, resend_ambiguous=False)
        return database.sent

    assert run(scenario()) == pytest.approx([0, 1, 3, 7, 15])


# What is sent again

ANSWERS = st.sampled_from(["ok", "transient", "ambiguous", "conflict", "permanent"])
ERRORS = {
    "transient": TransientError,
    "ambiguous": AmbiguousError,
    "conflict": ConflictError,
    "permanent": PermanentError,
}


def scripted(answers: Iterable[str]) -> Database:
    return Database(*(ERRORS[answer](answer) if answer in ERRORS else answer for answer in answers))


def expected_sends(answers: list[str], attempts: int, *, resend_ambiguous: bool) -> int:
    """How many of these answers a caller gets."""
    again = {"transient", "ambiguous"} if resend_ambiguous else {"transient"}
    ends = (n for n, answer in enumerate(answers, 1) if answer not in again)
    return min(next(ends, len(answers)), attempts + 1)


@given(st.lists(ANSWERS, min_size=8, max_size=8), st.integers(0, 6), st.booleans())
def test_what_is_sent_again_and_how_often(answers: list[str], attempts: int, resend_ambiguous: bool) -> None:
    """Transient errors are sent again, ambiguous ones only on request, others end the call; never over the limit.

    The caller gets the last answer, or a doubt that no result has settled.
    """

    async def scenario() -> tuple[Database, str]:
        database = scripted(answers)
        guarded = policy(attempts=attempts, breaker_failures=100)
        try:
            return database, await guarded.call("fail_jobs", database.send, resend_ambiguous=resend_ambiguous)
        except (TransientError, AmbiguousError, ConflictError, PermanentError) as error:
            return database, error.message

    database, outcome = run(scenario())
    sends = expected_sends(answers, attempts, resend_ambiguous=resend_ambiguous)
    assert len(database.sent) == sends <= attempts + 1
    doubted = answers[sends - 1] != "ok" and "ambiguous" in answers[:sends]
    assert outcome == ("ambiguous" if doubted else answers[sends - 1])


@pytest.mark.parametrize("later", [TransientError, ConflictError, AccessRefused, SettingsError, SchemaError])
def test_a_doubt_survives_any_later_error(later: type[ReltaskError]) -> None:
    """Lost answer, then "not applied" or "refused": the error says that the first try may have been applied."""

    async def scenario() -> None:
        database = Database(AmbiguousError("lost"), later("said of the second try"))
        with pytest.raises(AmbiguousError, match="lost") as caught:
            await policy(attempts=1).call("complete_jobs", database.send, resend_ambiguous=True)
        assert type(caught.value.__cause__) is later
        assert len(database.sent) == 2

    run(scenario())


def test_a_doubt_survives_a_breaker_that_opens_meanwhile() -> None:
    """The same if the second try is not sent: CircuitOpen would claim that nothing was applied."""

    async def scenario() -> None:
        guarded = policy()
        database = scripted(["ambiguous"])
        doubting = asyncio.create_task(guarded.call("complete_jobs", database.send, resend_ambiguous=True))
        await asyncio.sleep(0.5)
        await fail_until_open(guarded, failures=4)
        with pytest.raises(AmbiguousError) as caught:
            await doubting
        assert isinstance(caught.value.__cause__, CircuitOpen)
        assert len(database.sent) == 1

    run(scenario())


def test_a_cancelled_wait_sends_nothing_more() -> None:
    """Cancelling a caller between two tries ends the call there."""

    async def scenario() -> None:
        guarded, database = policy(), scripted(["transient"])
        waiting = asyncio.create_task(guarded.call("claim_jobs", database.send, resend_ambiguous=False))
        await asyncio.sleep(0.5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(60)
        assert len(database.sent) == 1

    run(scenario())


# When the breaker opens


@pytest.mark.parametrize("refusal", [ConflictError("key taken"), PermanentError("no such table")])
def test_a_refusal_counts_as_an_answer(refusal: Exception) -> None:
    """A constraint or a permission error comes from a working database: it is raised at once and never opens."""

    async def scenario() -> None:
        guarded = policy(breaker_failures=2)
        for _ in range(5):
            with pytest.raises(AmbiguousError):
                await guarded.call("x", scripted(["ambiguous"]).send, resend_ambiguous=False)
            with pytest.raises(type(refusal)):
                await guarded.call("x", Database(refusal).send, resend_ambiguous=False)
        assert guarded.state == "closed"

    run(scenario())


def test_an_open_breaker_sends_nothing_and_says_when() -> None:
    """While open every call is refused at once, with the verb and the time of the next try."""

    async def scenario() -> None:
        guarded, database = policy(), Database("ok")
        await fail_until_open(guarded)
        await asyncio.sleep(10)
        with pytest.raises(CircuitOpen, match=r"claim_jobs was not sent.*in 20\.0 s"):
            await guarded.call("claim_jobs", database.send, resend_ambiguous=True)
        assert database.sent == []
        assert asyncio.get_running_loop().time() == pytest.approx(10), "a refusal does not wait"

    run(scenario())


def test_one_call_that_fails_five_times_opens_the_breaker() -> None:
    """With the defaults a first try and its four retries are the five failures; no wait follows the last."""

    async def scenario() -> None:
        changes: list[str] = []
        guarded = policy(on_change=changes.append)
        with pytest.raises(TransientError):
            await guarded.call("claim_jobs", scripted(["transient"]).send, resend_ambiguous=False)
        assert asyncio.get_running_loop().time() == pytest.approx(15)
        assert changes == ["open"]

    run(scenario())


# The probe


@given(st.integers(1, 60), st.sampled_from(["ok", "conflict", "transient", "ambiguous"]), st.floats(0, 20))
def test_one_probe_however_many_come_at_once(callers: int, answer: str, seconds: float) -> None:
    """After the reset time exactly one of all callers is sent; an answer closes the breaker, a failure opens it."""

    async def scenario() -> None:
        changes: list[str] = []
        guarded = policy(on_change=changes.append)
        await fail_until_open(guarded)
        await asyncio.sleep(30)
        database = scripted([answer])
        database.seconds = seconds
        calls = [guarded.call("claim_jobs", database.send, resend_ambiguous=True) for _ in range(callers)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert len(database.sent) == 1
        assert sum(isinstance(outcome, CircuitOpen) for outcome in outcomes) == callers - 1
        there = answer in {"ok", "conflict"}
        assert guarded.state == ("closed" if there else "open")
        assert changes == ["open", "half-open", "closed" if there else "open"]

    run(scenario())


def test_a_failed_probe_costs_a_whole_reset_time() -> None:
    """The next probe comes 30 s after the failure of the last, not after the first opening."""

    async def scenario() -> None:
        guarded, database = policy(), Database(TransientError("away"), "ok", seconds=7.0)
        await fail_until_open(guarded)
        await asyncio.sleep(30)
        with pytest.raises(TransientError):
            await guarded.call("claim_jobs", database.send, resend_ambiguous=False)
        await asyncio.sleep(29.9)
        with pytest.raises(CircuitOpen):
            await guarded.call("claim_jobs", database.send, resend_ambiguous=False)
        await asyncio.sleep(0.2)
        assert await guarded.call("claim_jobs", database.send, resend_ambiguous=False) == "ok"
        assert guarded.state == "closed"

    run(scenario())


@given(st.integers(1, 20), st.integers(1, 20))
def test_a_cancelled_probe_frees_its_place(cancelled: int, callers: int) -> None:
    """However many probes are cancelled, the next caller is let through, and only one."""

    async def scenario() -> None:
        guarded, silent = policy(), Database("ok", seconds=5.0)
        await fail_until_open(guarded)
        await asyncio.sleep(30)
        for _ in range(cancelled):
            probe = asyncio.create_task(guarded.call("claim_jobs", silent.send, resend_ambiguous=False))
            await asyncio.sleep(1)
            probe.cancel()
            await asyncio.wait([probe])
        assert len(silent.sent) == cancelled
        database = Database("ok", seconds=1.0)
        calls = [guarded.call("claim_jobs", database.send, resend_ambiguous=False) for _ in range(callers)]
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(database.sent) == 1
        assert guarded.state == "closed"

    run(scenario())


def test_a_probe_that_ends_in_another_error_frees_its_place() -> None:
    """An exception that is not the database's says nothing about it: the next caller may probe."""

    async def scenario() -> None:
        guarded = policy()
        await fail_until_open(guarded)
        await asyncio.sleep(30)
        with pytest.raises(KeyError):
            await guarded.call("claim_jobs", Database(KeyError("column")).send, resend_ambiguous=False)
        assert guarded.state == "half-open"
        assert await guarded.call("claim_jobs", Database("ok").send, resend_ambiguous=False) == "ok"

    run(scenario())


def test_a_listener_that_raises_does_not_keep_the_probes_place() -> None:
    """on_change is the user's code: its error is raised, and the breaker can still close."""

    async def scenario() -> None:
        def listener(state: str) -> None:
            if state == "half-open":
                raise ValueError(state)

        guarded = policy(on_change=listener)
        await fail_until_open(guarded)
        await asyncio.sleep(30)
        with pytest.raises(ValueError, match="half-open"):
            await guarded.call("claim_jobs", Database("ok").send, resend_ambiguous=False)
        assert await guarded.call("claim_jobs", Database("ok").send, resend_ambiguous=False) == "ok"
        assert guarded.state == "closed"

    run(scenario())


@pytest.mark.parametrize("wrong", [{"breaker_failures": 0}, {"breaker_reset": -1.0}, {"attempts": -1}, {"first": -0.1}])
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    """A mistake in the settings is an error when the policy is made, not during an outage."""
    with pytest.raises(UsageError):
        policy(**wrong)


# Everything together


class Outage:
    """A database that is away for a time, and records what reaches it and when."""

    def __init__(self, start: float, end: float, rng: random.Random) -> None:
        self.start, self.end, self.rng = start, end, rng
        self.guarded = policy(rng=rng, breaker_failures=3, breaker_reset=5.0, on_change=self.changed)
        self.opened_at = -1.0
        self.probes = 0
        self.sends = 0

    def changed(self, state: str) -> None:
        if state == "open":
            self.opened_at = asyncio.get_running_loop().time()

    async def send(self) -> str:
        now = asyncio.get_running_loop().time()
        probing = self.guarded.state != "closed"
        self.sends += 1
        self.probes += probing
        assert self.probes <= 1, "two probes at once"
        assert not probing or now >= self.opened_at + 5.0, "sent before the reset time"
        try:
            await asyncio.sleep(self.rng.uniform(0, 2))
        finally:
            self.probes -= probing
        if self.start <= now < self.end:
            raise TransientError("away")
        return "ok"

    async def caller(self) -> None:
        """Call repeatedly, sometimes with a timeout, until long after the outage."""
        while asyncio.get_running_loop().time() < self.end + 30:
            try:
                async with asyncio.timeout(self.rng.choice([0.5, 3, 60])):
                    await self.guarded.call("claim_jobs", self.send, resend_ambiguous=False)
            except (TransientError, TimeoutError):
                pass
            await asyncio.sleep(self.rng.uniform(0.01, 2))


@given(st.integers(0, 2**32), st.integers(1, 12), st.floats(0, 5), st.floats(0, 60))
def test_an_outage_under_load(seed: int, callers: int, start: float, length: float) -> None:
    """Many callers with timeouts and an outage: never two probes, never an early send, and closed in the end."""

    async def scenario() -> None:
        outage = Outage(start, start + length, random.Random(seed))
        await asyncio.gather(*(outage.caller() for _ in range(callers)))
        assert outage.sends > 0
        await asyncio.sleep(10)
        assert await outage.guarded.call("claim_jobs", outage.send, resend_ambiguous=False) == "ok"
        assert outage.guarded.state == "closed"

    run(scenario())
