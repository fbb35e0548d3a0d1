"""How a run ended, as a value, and what is written for its job.

    body returned ─────────────► Ended(succeeded, result)      ┐
    body raised ───────────────► Ended(failed, error, delay)   ├─► Completion | Failure | Release
    body was stopped ──────────► Ended(released | abandoned …) ┘

Nothing here touches the database: the settlement is written by `settle`.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from reltask.errors import Again, Cancel, LockLost, Retry, Snooze, Stopped
from reltask.model import backoff, schedule
from reltask.model.arguments import encode_json
from reltask.model.duration import LONGEST
from reltask.model.job import EARLIEST, LATEST, SLOT_ENDINGS, Claim, Completion, Failure, Outcome, Release, Settlement
from reltask.worker.parking import Suspended
from reltask.worker.process import RaisedInChild, Unkept
from reltask.worker.run import Run, StopReason, not_run

_WIDEST = 4
"""The most bytes of a character."""
_LONGEST_REASON = 1_000
"""Characters of why a result was not stored: what the user's classes have raised may be long."""
_ENGINE = str(Path(__file__).parent)
read_schedule = lru_cache(maxsize=1024)(schedule.decode)


class Ended(Struct, frozen=True, kw_only=True, gc=False):
    """How a body ended."""

    outcome: Outcome
    result: str | None = None
    error: str | None = None
    delay: timedelta | None = None
    """Chosen by the task; None: the task's backoff."""
    final: bool = False
    """Whether a failure makes the job dead at once."""
    not_stored: str | None = None
    """Why the return value could not be stored, although the slot succeeded."""
    again: str | None = None
    """The arguments of the next slot, which begins at once."""


PLAIN_SUCCESS = Ended(outcome=Outcome.SUCCEEDED)


def returned(value: object, *, limit: int) -> Ended:
    """The body returned: a success, even if its result cannot be stored, unless it returned an unrun coroutine."""
    if value is None:
        return PLAIN_SUCCESS
    if isinstance(value, Unkept):
        return Ended(outcome=Outcome.SUCCEEDED, not_stored=value.reason)
    try:
        raw = encode_json(value)
    except Exception as error:  # noqa: BLE001 - encoding calls the user's classes, which may raise anything
        why = not_run(value)
        if why is not None:
            return Ended(outcome=Outcome.FAILED, error=why)
        return Ended(outcome=Outcome.SUCCEEDED, not_stored=str(error) or type(error).__name__)
    if len(raw) > limit:
        return Ended(outcome=Outcome.SUCCEEDED, not_stored=f"{len(raw):,} bytes exceed the limit of {limit:,}")
    return Ended(outcome=Outcome.SUCCEEDED, result=raw.decode())


def raised(error: BaseException, run: Run, *, limit: int) -> Ended:  # noqa: PLR0911 - one line per case
    """The body raised: what the task chose, what the worker asked for, or a failure."""
    match error:
        case Snooze(delay=delay):
            return Ended(outcome=Outcome.SNOOZED, error=str(error), delay=delay)
        case Cancel():
            return Ended(outcome=Outcome.CANCELLED, error=str(error))
        case Retry(delay=delay):
            return Ended(outcome=Outcome.FAILED, error=describe(error, limit=limit), delay=delay)
        case Again(call=call):
            return _again(call, run)
        case LockLost():
            return Ended(outcome=Outcome.ABANDONED, error=str(error))
        case asyncio.CancelledError() | Stopped() if run.stop_reason is not None:
            return stopped(run)
    return Ended(outcome=Outcome.FAILED, error=describe(error, limit=limit))


def _again(call: Any, run: Run) -> Ended:
    if run.claim.schedule is not None:
        return Ended(outcome=Outcome.FAILED, error="Again was raised by a recurring job: its schedule starts it again.")
    if getattr(call, "task", None) is not run.task:
        return Ended(outcome=Outcome.FAILED, error="Again takes a call of the same task: Again(poll.call(cursor)).")
    return Ended(outcome=Outcome.SUCCEEDED, again=call.args)


def suspended(error: BaseException | None, run: Run, *, limit: int) -> Ended:
    """The body was asked to end because it waits. If it did anything else, it cannot be resumed there."""
    if isinstance(error, asyncio.CancelledError | Suspended):
        return Ended(outcome=Outcome.SUSPENDED, error=_why_suspended(run))
    went_on = (
        "The body went on after it was suspended. Do not catch asyncio.CancelledError or BaseException around calls "
        "of ctx without raising it again."
    )
    why = "" if error is None else f"\n{describe(error, limit=limit)}"
    return Ended(outcome=Outcome.FAILED, error=went_on + why)


def _why_suspended(run: Run) -> str:
    wake_at = None if run.suspension is None else run.suspension.wake_at
    if wake_at is None:
        return "until a signal or a child's end"
    return f"until {wake_at:%Y-%m-%d %H:%M:%S} UTC at the latest"


def fault_of(claim: Claim, *, arguments_limit: int) -> str | None:
    """Why this worker cannot run this row, although no constraint has refused it; None: it can be run."""
    if len(claim.args) * _WIDEST > arguments_limit and len(claim.args.encode()) > arguments_limit:
        return f"The job's arguments have more bytes than limits.arguments of this worker: {arguments_limit:,}."
    if claim.lock_timeout > LONGEST:
        return f"The job's lock_timeout_ms is outside 1 to {LONGEST // timedelta(milliseconds=1)}."
    times = (claim.nominal, claim.due_at, claim.slot_started_at)
    if min(times) >= EARLIEST and max(times) < LATEST:
        return None
    names = ("next_run_time", "not_before", "slot_started_at")
    name = next(name for name, time in zip(names, times, strict=True) if not EARLIEST <= time < LATEST)
    return f"The job's {name} is outside the years {EARLIEST.year} to {LATEST.year - 1}."


def stopped(run: Run) -> Ended:
    """The body ended because the worker asked it to."""
    if run.stop_reason is StopReason.TIMEOUT:
        return Ended(outcome=Outcome.FAILED, error=f"TimeoutError: {run.stop_detail}")
    if run.stop_reason is StopReason.SHUTDOWN:
        return Ended(outcome=Outcome.RELEASED, error=run.stop_detail)
    if run.stop_reason is StopReason.CANCELLED:
        return Ended(outcome=Outcome.CANCELLED, error=run.stop_detail)
    return Ended(outcome=Outcome.ABANDONED, error=run.stop_detail)


def describe(error: BaseException, *, limit: int) -> str:
    """The traceback from the task's own code on, shortened in the middle if it exceeds the limit."""
    text = str(error) if isinstance(error, RaisedInChild) else _traceback(error)
    text = text.replace("\x00", "\\x00")
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]}\n… {len(text) - limit:,} characters left out …\n{text[head - limit :]}"


def _traceback(error: BaseException) -> str:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_ENGINE):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def settlement(run: Run, ended: Ended, *, now: float, rng: random.Random) -> Settlement:
    """What to write for this end, at this monotonic time."""
    if ended.outcome in SLOT_ENDINGS:
        return complete(run, ended, now)
    if ended.outcome is Outcome.SUSPENDED and run.suspension is not None:
        return run.suspension
    if ended.outcome is Outcome.FAILED:
        delay = retry_delay(run, rng) if ended.delay is None else ended.delay
        return Failure(hold=run.hold, error=ended.error or "", delay=delay, final=ended.final)
    if ended.outcome is Outcome.ABANDONED and run.starved:  # else a job that starves its worker never reaches its limit
        delay = retry_delay(run, rng)
        return Release(hold=run.hold, outcome=ended.outcome, error=ended.error, delay=delay, counted=True)
    return Release(hold=run.hold, outcome=ended.outcome, error=ended.error, delay=ended.delay)


def complete(run: Run, ended: Ended, now: float) -> Completion:
    """End the slot: compute the next one, or, for a one-off, none."""
    claim, keep = run.claim, run.task.options.keep_arguments
    end = Completion(
        run.hold,
        ended.outcome,
        ended.result,
        ended.error if ended.not_stored is None else _not_stored(ended.not_stored),
        has_parent=claim.has_parent,
        keeps_args=run.keeps_arguments if keep is None else keep,
        has_limits=run.is_limited,
    )
    if ended.again is not None:
        return msgspec.structs.replace(end, next_run_time=run.now(now), args=ended.again)
    if claim.schedule is None:
        return end
    rule = read_schedule(run.redeclared or claim.schedule)
    times = {"nominal": claim.nominal, "started": claim.slot_started_at, "finished": run.now(now)}
    following = schedule.next_slot(rule, **times, seed=str(claim.job_id))
    if schedule.has_ended(rule, following.at):  # the job ends with this slot
        return end
    if following.at >= LATEST:
        raise OverflowError(f"The next slot would be after the year {LATEST.year - 1}.")
    return msgspec.structs.replace(end, next_run_time=following.at, skipped=following.skipped)


def _not_stored(why: str) -> str:
    """What the ledger says of a success whose result is missing."""
    return f"Its result was not stored: {why}".replace("\x00", "\\x00")[:_LONGEST_REASON]


def retry_delay(run: Run, rng: random.Random) -> timedelta:
    """How long to wait before this slot is tried again."""
    claim, rule = run.claim, run.task.options.backoff
    if rule is None and claim.schedule is None:
        rule = backoff.one_off()
    elif rule is None:
        every = read_schedule(claim.schedule)
        rule = backoff.recurring(every.interval if isinstance(every, schedule.Every) else None)
    return rule.delay(run.attempt, rng=rng)
