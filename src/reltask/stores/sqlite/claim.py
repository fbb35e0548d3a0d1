"""How a claim looks before it writes.

    look (reads only) ── no known job is due ──► answer: no claims, and when to ask again
         │
         └─ some are due ──► become the writer, look again if the file has changed meanwhile, take
                             lane after lane by (priority, oldest due time), until the limit; before
                             them up to `oldest` jobs of the lane whose first job has waited longest

A lane is (isolated, queue, task, priority). Looking costs one index seek per lane, taking one per lane and row, so a
poll costs the same with ten jobs in the table and with ten million. SQLite has one writer at a time, so no other worker
can take a job between the last look and the claim.
"""

from __future__ import annotations

import sqlite3

from msgspec import Struct

from reltask.model.job import Claim, ClaimAnswer, ClaimRequest, Fleet
from reltask.stores.sqlite import values
from reltask.stores.sqlite.connections import FileTransaction, Session

_ALIVE_SHARE = 0.75
"""An idle worker's own row is refreshed when less than this share is left of the time for which it
wants to count as alive: each refresh is a write, which wakes other workers."""

_LANES, _TIMES, _DUE, _TAKE, _ALIVE, _FLEET = range(6)
"""The statements of claim_jobs.sql, in their order."""


class _Sight(Struct, frozen=True):
    """What a look found."""

    now: int
    version: int
    lanes: list[sqlite3.Row]
    next_expiry: int | None
    marked: bool
    """There are marks to fold."""
    limited_at: int | None
    """The first mark of a limit."""
    alive_until: int | None
    """Until when the worker counts as alive; None: it has no row."""
    idle: bool
    """Whether the worker's row says that it is idle."""

    @property
    def due_lanes(self) -> list[sqlite3.Row]:
        return [lane for lane in self.lanes if lane["is_due"]]


def claim_jobs(session: Session, request: ClaimRequest) -> ClaimAnswer:
    """Look, and write only if there is something to take."""
    seen, fleet = session.read(lambda transaction: (_look(transaction, request), _count(transaction, request)))
    if (request.limit > 0 and seen.due_lanes) or _has_news(request, seen):
        return session.write(lambda transaction: _take_and_look(transaction, request, seen, fleet))
    return _answer([], seen, fleet)


def _has_news(request: ClaimRequest, seen: _Sight) -> bool:
    """Whether the worker's own row is to be written although nothing is claimed."""
    if seen.alive_until is None:
        return False
    left = values.moment(seen.alive_until) - values.moment(seen.now)
    return left < _ALIVE_SHARE * request.alive_for or (request.counts and not seen.idle)


def _take_and_look(
    transaction: FileTransaction, request: ClaimRequest, seen: _Sight, fleet: Fleet | None
) -> ClaimAnswer:
    if transaction.version != seen.version:
        seen = _look(transaction, request)
    claims = _take(transaction, request, seen) if request.limit > 0 else []
    _run(
        transaction,
        _ALIVE,
        worker=request.worker,
        alive_for=values.length(request.alive_for),
        filled=int(len(claims) >= request.limit),
        looked_in_vain=int(request.counts and not claims),
    )
    return _answer(claims, _look(transaction, request, lanes=seen.lanes), None if claims else fleet)


def _count(transaction: FileTransaction, request: ClaimRequest) -> Fleet | None:
    """The idle workers, if the request asks for them."""
    if not request.counts:
        return None
    (row,) = _run(transaction, _FLEET, worker=request.worker)
    return Fleet(row["rank"], row["size"], row["idle"])


def _look(transaction: FileTransaction, request: ClaimRequest, *, lanes: list[sqlite3.Row] | None = None) -> _Sight:
    """All that matters to a claim. Lanes cost the most, and taking from them changes nothing about their future."""
    known = {"queues": values.batch(request.queues), "tasks": values.batch(request.tasks)}
    if lanes is None:
        lanes = _run(transaction, _LANES, **known, isolated=int(request.isolated))
    (times,) = _run(transaction, _TIMES, worker=request.worker, **known)
    return _Sight(
        now=transaction.now,
        version=transaction.version,
        lanes=lanes,
        next_expiry=times["next_expiry"],
        marked=bool(times["marked"]),
        limited_at=times["limited_at"],
        alive_until=times["alive_until"],
        idle=bool(times["idle"]),
    )


def _take(transaction: FileTransaction, request: ClaimRequest, seen: _Sight) -> list[Claim]:
    due = seen.due_lanes
    oldest = min(due, key=lambda lane: lane["due_at"], default=None)
    ids: list[str] = []
    isolated = False
    if request.oldest > 0 and oldest is not None and oldest is not due[0]:
        ids = _ids(transaction, oldest, min(request.oldest, request.limit))
        isolated = bool(oldest["isolated"])
    early = len(ids)
    for lane in due:
        if len(ids) >= request.limit:
            break
        if lane["isolated"] and isolated:
            continue
        again = early if lane is oldest else 0  # these are found a second time
        ids += _ids(transaction, lane, request.limit - len(ids) + again)[again:]
        isolated = isolated or bool(lane["isolated"])
    return take(transaction, request, ids)


def take(transaction: FileTransaction, request: ClaimRequest, ids: list[str]) -> list[Claim]:
    """Claim these jobs."""
    rows = _run(
        transaction,
        _TAKE,
        ids=values.batch(ids),
        worker=request.worker,
        token=str(request.token),
        lock_timeout_ms=values.timeout_ms(request.lock_timeout),
    )
    return sorted(map(values.claim, rows), key=lambda claim: (claim.priority, claim.due_at))


def _ids(transaction: FileTransaction, lane: sqlite3.Row, room: int) -> list[str]:
    """The first due jobs of a lane; of an isolated one, one."""
    place = {name: lane[name] for name in ("isolated", "queue", "task", "priority")}
    return [row["id"] for row in _run(transaction, _DUE, **place, room=1 if lane["isolated"] else room)]


def _answer(claims: list[Claim], seen: _Sight, fleet: Fleet | None) -> ClaimAnswer:
    """With room left, all that was due has been taken; without, the worker asks again when it has room."""
    later = [values.moment(lane["later"]) for lane in seen.lanes if lane["later"] is not None]
    return ClaimAnswer(
        claims=claims,
        now=values.moment(seen.now),
        next_due=min(later, default=None),
        next_expiry=values.optional_moment(seen.next_expiry),
        marked=seen.marked,
        limited_at=values.optional_moment(seen.limited_at),
        fleet=fleet,
    )


def _run(transaction: FileTransaction, which: int, **parameters: object) -> list[sqlite3.Row]:
    return transaction.run(transaction.statements("claim_jobs")[which], **parameters)
