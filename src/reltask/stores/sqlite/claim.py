"""How a claim looks before it writes.

    look (reads only) ── no known job is due ──► answer: no claims, and when to ask again
         │
         └─ some are due ──► become the writer, look again if the file has changed meanwhile, take
                             lane after lane by (priority, oldest due time), until the limit

A lane is (isolated, queue, task, priority). Looking costs one index seek per lane, taking one per lane and row, so a
poll costs the same with ten jobs in the table and with ten million. SQLite has one writer at a time, so no other worker
can take a job between the last look and the claim.
"""

from __future__ import annotations

import sqlite3
from datetime import timedelta

from msgspec import Struct

from reltask.model.job import Claim, ClaimAnswer, ClaimRequest
from reltask.stores.sqlite import values
from reltask.stores.sqlite.connections import FileTransaction, Session
from reltask.stores.statement import load

_ALIVE_EVERY = values.length(timedelta(seconds=5))
"""An idle worker's own row is refreshed at most this often: each refresh is a write."""

_LANES, _TIMES, _DUE, _TAKE, _ALIVE = range(5)
"""The statements of claim_jobs.sql, in their order."""


class _Sight(Struct, frozen=True):
    """What a look found."""

    now: int
    version: int
    lanes: list[sqlite3.Row]
    next_expiry: int | None
    marked: bool
    """There are marks to fold."""
    silent: bool
    """The worker has a row, and its last heartbeat is a while ago."""

    @property
    def due_lanes(self) -> list[sqlite3.Row]:
        return [lane for lane in self.lanes if lane["is_due"]]


def claim_jobs(session: Session, request: ClaimRequest) -> ClaimAnswer:
    """Look, and write only if there is something to take."""
    seen = session.read(lambda transaction: _look(transaction, request))
    if (request.limit > 0 and seen.due_lanes) or seen.silent:
        return session.write(lambda transaction: _take_and_look(transaction, request, seen))
    return _answer([], seen)


def _take_and_look(transaction: FileTransaction, request: ClaimRequest, seen: _Sight) -> ClaimAnswer:
    if transaction.version != seen.version:
        seen = _look(transaction, request)
    claims = _take(transaction, request, seen) if request.limit > 0 else []
    _run(transaction, _ALIVE, worker=request.worker, alive_for=values.length(request.alive_for))
    return _answer(claims, _look(transaction, request, lanes=seen.lanes))


def _look(transaction: FileTransaction, request: ClaimRequest, *, lanes: list[sqlite3.Row] | None = None) -> _Sight:
    """All that matters to a claim. Lanes cost the most, and taking from them changes nothing about their future."""
    if lanes is None:
        known = {"queues": values.batch(request.queues), "tasks": values.batch(request.tasks)}
        lanes = _run(transaction, _LANES, **known, isolated=int(request.isolated))
    (times,) = _run(transaction, _TIMES, worker=request.worker)
    return _Sight(
        now=transaction.now,
        version=transaction.version,
        lanes=lanes,
        next_expiry=times["next_expiry"],
        marked=bool(times["marked"]),
        silent=times["seen_at"] is not None and times["seen_at"] + _ALIVE_EVERY <= transaction.now,
    )


def _take(transaction: FileTransaction, request: ClaimRequest, seen: _Sight) -> list[Claim]:
    ids: list[str] = []
    isolated = False
    for lane in seen.due_lanes:
        if len(ids) >= request.limit:
            break
        if lane["isolated"] and isolated:
            continue
        room = 1 if lane["isolated"] else request.limit - len(ids)
        place = {name: lane[name] for name in ("isolated", "queue", "task", "priority")}
        ids += [row["id"] for row in _run(transaction, _DUE, **place, room=room)]
        isolated = isolated or bool(lane["isolated"])
    rows = _run(
        transaction,
        _TAKE,
        ids=values.batch(ids),
        worker=request.worker,
        token=str(request.token),
        lock_timeout_ms=values.timeout_ms(request.lock_timeout),
    )
    return sorted(map(values.claim, rows), key=lambda claim: (claim.priority, claim.due_at))


def _answer(claims: list[Claim], seen: _Sight) -> ClaimAnswer:
    """With room left, all that was due has been taken; without, the worker asks again when it has room."""
    later = [values.moment(lane["later"]) for lane in seen.lanes if lane["later"] is not None]
    return ClaimAnswer(
        claims=claims,
        now=values.moment(seen.now),
        next_due=min(later, default=None),
        next_expiry=values.optional_moment(seen.next_expiry),
        marked=seen.marked,
    )


def _run(transaction: FileTransaction, which: int, **parameters: object) -> list[sqlite3.Row]:
    return transaction.run(load("sqlite", "claim_jobs", "named")[which], **parameters)
