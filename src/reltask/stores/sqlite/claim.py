"""A claim reads first, and writes only if a job is due.

    read ── no job of this worker is due ──► answer: no claims, and when to claim again
         │
         └─ a job is due ──► become the writer, read again if the file has changed meanwhile, claim:
                                an isolated job, alone; or
                                lane after lane by (priority, oldest due time), until the limit

A lane is (queue, task, priority). Reading costs one index seek per lane, claiming one per lane and row, so a poll costs
the same with ten jobs in the table and with ten million. Since SQLite has one writer at a time, no other worker can
claim a job between the last read and the claim.
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

_LANES, _ISOLATED, _TIMES, _DUE, _TAKE, _ALIVE = range(6)
"""The statements of claim_jobs.sql, in their order."""


class _DueJobs(Struct, frozen=True):
    """The due jobs, and what else a claim needs, as read."""

    now: int
    version: int
    lanes: list[sqlite3.Row]
    isolated: sqlite3.Row | None
    next_expiry: int | None
    silent: bool
    """The worker has a row, and it is time to refresh it."""

    @property
    def isolated_due(self) -> bool:
        return self.isolated is not None and self.isolated["due_at"] <= self.now

    @property
    def due_lanes(self) -> list[sqlite3.Row]:
        return [lane for lane in self.lanes if lane["due_at"] <= self.now]

    def next_due(self, *, room: bool, drained: bool) -> int | None:
        """The earliest due time of the jobs left; in lanes that are drained, or without room, of future jobs only."""
        times = [lane["due_at"] if room and not drained else lane["later"] for lane in self.lanes]
        if self.isolated is not None and (room or not self.isolated_due):
            times.append(self.isolated["due_at"])
        return min((time for time in times if time is not None), default=None)


def claim_jobs(session: Session, request: ClaimRequest) -> ClaimAnswer:
    """Read, and write only if there is a job to claim or the worker's row must be refreshed."""
    seen = session.read(lambda transaction: _read(transaction, request))
    wanted = request.limit > 0 and (seen.isolated_due or seen.due_lanes)
    if wanted or seen.silent:
        return session.write(lambda transaction: _claim(transaction, request, seen))
    return _answer(request, [], seen)


def _claim(transaction: FileTransaction, request: ClaimRequest, seen: _DueJobs) -> ClaimAnswer:
    if transaction.version != seen.version:
        seen = _read(transaction, request)
    claims = _take(transaction, request, seen) if request.limit > 0 else []
    _run(transaction, _ALIVE, worker=request.worker, alive_for=values.length(request.alive_for))
    return _answer(request, claims, _read(transaction, request, lanes=seen.lanes))


def _read(transaction: FileTransaction, request: ClaimRequest, *, lanes: list[sqlite3.Row] | None = None) -> _DueJobs:
    """All that a claim needs. Lanes cost the most; after a claim they are reused, as their future jobs are the same."""
    known = {"queues": values.batch(request.queues), "tasks": values.batch(request.tasks)}
    if lanes is None:
        lanes = _run(transaction, _LANES, **known)
    isolated = _run(transaction, _ISOLATED, **known, isolated_after=values.length(request.isolated_after))
    (times,) = _run(transaction, _TIMES, worker=request.worker)
    return _DueJobs(
        now=transaction.now,
        version=transaction.version,
        lanes=lanes,
        isolated=isolated[0] if isolated else None,
        next_expiry=times["next_expiry"],
        silent=times["seen_at"] is not None and times["seen_at"] + _ALIVE_EVERY <= transaction.now,
    )


def _take(transaction: FileTransaction, request: ClaimRequest, seen: _DueJobs) -> list[Claim]:
    ids = [seen.isolated["id"]] if seen.isolated is not None and seen.isolated_due else []
    for lane in [] if ids else seen.due_lanes:
        place = {"queue": lane["queue"], "task": lane["task"], "priority": lane["priority"]}
        ids += [row["id"] for row in _run(transaction, _DUE, **place, room=request.limit - len(ids))]
        if len(ids) >= request.limit:
            break
    rows = _run(
        transaction,
        _TAKE,
        ids=values.batch(ids),
        worker=request.worker,
        token=str(request.token),
        lock_timeout_ms=values.timeout_ms(request.lock_timeout),
    )
    return sorted(map(values.claim, rows), key=lambda claim: (claim.priority, claim.due_at))


def _answer(request: ClaimRequest, claims: list[Claim], seen: _DueJobs) -> ClaimAnswer:
    # A claim from the lanes takes all jobs that are due in them, up to the limit.
    drained = any(not claim.isolated for claim in claims)
    return ClaimAnswer(
        claims=claims,
        now=values.moment(seen.now),
        next_due=values.optional_moment(seen.next_due(room=len(claims) < request.limit, drained=drained)),
        next_expiry=values.optional_moment(seen.next_expiry),
    )


def _run(transaction: FileTransaction, which: int, **parameters: object) -> list[sqlite3.Row]:
    return transaction.run(load("sqlite", "claim_jobs", "named")[which], **parameters)
