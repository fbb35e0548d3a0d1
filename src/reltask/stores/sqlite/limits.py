"""Limits on SQLite: how a claim of jobs with limits decides.

    look (reads only) ── no mark is due ──► answer: no claims, and when to ask again
         │
         └─ some are due ──► become the writer: remove the marks of up to twice as many keys as there are places,
                             look at the due jobs of those that have room, and take the best, job by job

There is one writer, so what is counted is true until the commit. A job that has several keys waits at one of them; if
another has no room, it goes to wait there, where the end that makes room finds it.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from reltask.model.audit import Miscount
from reltask.model.job import ClaimAnswer, ClaimRequest
from reltask.model.limit import LimitKeyView, LimitRule, LimitView
from reltask.stores.limits import ALL, BATCH, limit_rule, limit_view, rule_columns
from reltask.stores.sqlite import values
from reltask.stores.sqlite.claim import take
from reltask.stores.sqlite.connections import FileTransaction, Session

T = TypeVar("T")
Rows = list[Any]
_LANES, _KEYS, _TAKE_MARKS, _KEY, _JOB_LANES, _JOBS, _COUNT, _MOVE, _MARK, _FIRST = range(10)
"""The statements of claim_limited.sql, in their order."""
_FOR_ALL = {"queue": "", "task": "limit"}
_ISOLATED_AGAIN = 1_000_000
"""Microseconds until the next look at an isolated job, if this worker has one already."""


class LimitVerbs(ABC):
    """The verbs that limits need."""

    _session: Session

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _write(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _call(self, verb: str, work: Callable[[], T]) -> T: ...

    async def claim_limited(self, request: ClaimRequest) -> ClaimAnswer:
        return await self._call("claim_limited", lambda: claim_limited(self._session, request))

    async def read_limits(self) -> list[LimitRule]:
        (rows,) = await self._read("read_limits")
        return [limit_rule(row) for row in rows]

    async def write_limit(self, rule: LimitRule, *, seen: str | None) -> bool:
        written = await self._write("write_limit", **rule_columns(rule), seen=seen)
        return bool(written[-1])

    async def list_limits(self, *, most: int = ALL) -> list[LimitView]:
        (rows,) = await self._read("list_limits", most=most)
        return [limit_view(row) for row in rows]

    async def list_limit_keys(self, name: str, *, limit: int = 100) -> list[LimitKeyView]:
        (rows,) = await self._read("list_limit_keys", name=name, limit=limit)
        return [LimitKeyView(**dict(row)) for row in rows]

    async def recount_limits(self, *, limit: int = BATCH) -> int:
        counted, added, marked, _ = await self._write("recount_limits", limit=limit)
        return len(counted) + len(added) + len(marked)

    async def audit_limits(self, *, limit: int = BATCH) -> list[Miscount]:
        (rows,) = await self._read("audit_limits", limit=limit)
        return [Miscount(row["key"], row["counted"], row["claimed"], bool(row["is_stranded"])) for row in rows]


def claim_limited(session: Session, request: ClaimRequest) -> ClaimAnswer:
    """Look, and write only if a mark is due."""
    now, lanes = session.read(lambda transaction: (transaction.now, _lanes(transaction, request)))
    if request.limit > 0 and any(lane["at"] <= now for lane in lanes):
        return session.write(lambda transaction: _Look(transaction, request).claim())
    return _answer([], now, min((lane["at"] for lane in lanes), default=None))


class _Key:
    """One key: what is left of it."""

    def __init__(self, name: str, row: sqlite3.Row | None, *, freed: int, is_wanted: bool) -> None:
        self.key = name
        self.limit = None if row is None else row["name"]
        self.freed = freed
        self.is_wanted = is_wanted
        self.room = 0 if row is None else row["room"] + freed
        self.running = 0 if row is None else row["running"] - freed
        self.tokens = 0.0 if row is None else row["tokens"]
        self.has_rate = row is not None and row["rate_count"] is not None
        self.token_us = 0.0 if row is None or not self.has_rate else 1000 * row["rate_period_ms"] / row["rate_count"]
        self.has_queue = row is not None and not is_wanted and bool(row["has_queue"])
        self.is_touched = is_wanted
        self.left = False
        """Whether there are jobs that this worker could run, but for a place of its own or a token."""
        self.resumes = False
        """Whether one of them needs no token."""
        self.others: set[tuple[str, str, int]] = set()
        """Lanes of jobs that this worker cannot run: queue, task, and in how long to look again."""

    def refuses(self, *, resumes: bool) -> bool:
        """Whether a job cannot have a place here now."""
        return self.room <= 0 or not (resumes or self.tokens >= 1)

    def take(self, *, resumes: bool) -> None:
        """Take a place, and a token unless the job resumes."""
        self.room -= 1
        self.running += 1
        self.tokens -= 0 if resumes or not self.has_rate else 1
        self.is_touched = True

    def token_at(self, now: int) -> int:
        """When there is a token."""
        return now if self.tokens >= 1 else now + int((1 - self.tokens) * self.token_us) + 1


class _Look:
    """One look at the keys that have marks."""

    def __init__(self, transaction: FileTransaction, request: ClaimRequest) -> None:
        self._transaction = transaction
        self._request = request
        self._known = {"queues": values.batch(request.queues), "tasks": values.batch(request.tasks)}
        self._keys: dict[str, _Key] = {}
        self._marks: set[tuple[str, int]] = set()
        self._marked = False
        """Whether marks are left that only other workers may take."""

    def claim(self) -> ClaimAnswer:
        for name, freed in self._take_marks().items():
            self._keys[name] = self._read_key(name, freed=freed, is_wanted=True)
        jobs = sorted(self._jobs(), key=lambda job: (job["due_at"], job["id"]))
        oldest, others = jobs[: self._request.oldest], jobs[self._request.oldest :]
        jobs = oldest + sorted(others, key=lambda job: job["priority"])
        chosen: list[str] = []
        for job in jobs:
            if len(chosen) >= self._request.limit:
                self._leave(job)
            elif self._takes(job):
                chosen.append(job["id"])
        claims = take(self._transaction, self._request, chosen)
        self._write()
        lanes = _lanes(self._transaction, self._request)
        first = min((lane["at"] for lane in lanes), default=None)
        return _answer(claims, self._transaction.now, first, marked=self._marked)

    def _take_marks(self) -> dict[str, int]:
        """The keys to look at, with the places that became free. All their marks are removed."""
        lanes = _lanes(self._transaction, self._request)
        room = 2 * self._request.limit + 10
        found = [row["name"] for lane in lanes for row in self._run(_KEYS, **_place(lane), room=room)]
        return {
            name: sum(row["freed"] for lane in lanes for row in self._run(_TAKE_MARKS, **_place(lane), key=name))
            for name in dict.fromkeys(found)
        }

    def _read_key(self, name: str, *, freed: int = 0, is_wanted: bool = False) -> _Key:
        rows = self._run(_KEY, key=name)
        return _Key(name, rows[0] if rows else None, freed=freed, is_wanted=is_wanted)

    def _jobs(self) -> list[dict[str, Any]]:
        """The jobs to choose from."""
        jobs: list[dict[str, Any]] = []
        isolated: list[dict[str, Any]] = []
        for key in list(self._keys.values()):
            if key.room <= 0:
                continue
            for lane in self._run(_JOB_LANES, key=key.key, **self._known):
                if not lane["is_known"] or (lane["isolated"] and not self._request.isolated):
                    later = _ISOLATED_AGAIN if lane["is_known"] else 0
                    key.others.add((lane["queue"], lane["task"], later))
                    continue
                found = self._jobs_of(key, lane)
                (isolated if lane["isolated"] else jobs).extend(found)
        first = sorted(isolated, key=lambda job: (job["priority"], job["due_at"], job["id"]))
        for job in first[1:]:  # one at a time
            self._leave(job)
        return jobs + first[:1]

    def _jobs_of(self, key: _Key, lane: sqlite3.Row) -> list[dict[str, Any]]:
        tokens = key.room if lane["suspended"] else int(min(key.tokens, key.room))
        most = min(1 if lane["isolated"] else self._request.limit, key.room, tokens)
        place = {name: lane[name] for name in ("isolated", "suspended", "queue", "task", "priority")}
        rows = self._run(_JOBS, key=key.key, room=most, **place) if most > 0 else []
        if len(rows) >= most:  # there may be more
            key.left = True
            key.resumes = key.resumes or bool(lane["suspended"])
        return [{**dict(row), "gate": key.key, "resumes": bool(lane["suspended"])} for row in rows]

    def _takes(self, job: dict[str, Any]) -> bool:
        """Take a place of each of a job's keys; or, if one has none, let the job wait there."""
        names = [job["gate"]] if job["limits"] is None else msgspec.json.decode(job["limits"], type=list[str])
        for name in names:
            if name not in self._keys:
                self._keys[name] = self._read_key(name)
        keys = [self._keys[name] for name in names]
        gate = names.index(job["gate"])
        for nth, key in enumerate(keys):
            waits = nth > gate and key.has_queue  # those that wait there go first
            if waits or key.refuses(resumes=job["resumes"]):
                self._wait_at(job, key)
                return False
        for key in keys:
            key.take(resumes=job["resumes"])
        return True

    def _wait_at(self, job: dict[str, Any], key: _Key) -> None:
        if key.key == job["gate"]:
            self._leave(job)
            return
        self._run(_MOVE, id=job["id"], key=key.key)
        key.is_touched = True
        if key.room > 0:
            now = self._transaction.now
            self._marks.add((key.key, now if job["resumes"] else key.token_at(now)))

    def _leave(self, job: dict[str, Any]) -> None:
        key = self._keys[job["gate"]]
        key.left = True
        key.resumes = key.resumes or job["resumes"]

    def _write(self) -> None:
        now = self._transaction.now
        for key in self._keys.values():
            if key.limit is None:
                continue
            if key.is_touched:
                tokens = key.tokens if key.has_rate else 0.0
                self._run(_COUNT, key=key.key, name=key.limit, running=key.running, tokens=tokens)
            if key.room > 0 and key.left:
                self._marks.add((key.key, now if key.resumes else key.token_at(now)))
            if key.room > 0:
                for queue, task, later in key.others:
                    at = now + later if later else key.token_at(now)
                    self._run(_MARK, queue=queue, task=task, at=at, key=key.key)
                    self._marked = self._marked or not later
        for name, at in self._marks:
            self._run(_MARK, **_FOR_ALL, at=at, key=name)

    def _run(self, which: int, **parameters: object) -> list[sqlite3.Row]:
        return _run(self._transaction, which, **parameters)


def _lanes(transaction: FileTransaction, request: ClaimRequest) -> list[sqlite3.Row]:
    known = {"queues": values.batch(request.queues), "tasks": values.batch(request.tasks)}
    return _run(transaction, _LANES, **known)


def _place(lane: sqlite3.Row) -> dict[str, object]:
    return {"queue": lane["queue"], "task": lane["task"]}


def _answer(claims: Iterable[Any], now: int, limited_at: int | None, *, marked: bool = False) -> ClaimAnswer:
    return ClaimAnswer(
        claims=list(claims),
        now=values.moment(now),
        next_due=None,
        next_expiry=None,
        marked=marked,
        limited_at=values.optional_moment(limited_at),
    )


def _run(transaction: FileTransaction, which: int, **parameters: object) -> list[sqlite3.Row]:
    return transaction.run(transaction.statements("claim_limited")[which], **parameters)
