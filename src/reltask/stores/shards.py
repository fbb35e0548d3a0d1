"""Several shards behind the store interface: for producers, operators and the command line.

    enqueue, signal, read by id ──► the shard that the id or the key names
    lists, counts, audits ────────► all shards, merged
    leases, actions ──────────────► the first shard: they exist once
    claims, beats, settlements ───► not here: a worker serves each shard through its own store (worker/shards.py)

ROUTES says which way each verb goes. A verb of the store interface that has no route is an error of
a test, not of a user. A pause of a queue holds on every shard.

Shards fail one by one. A write goes to one shard and fails with it. An insert on several shards that
fails on some of them is ambiguous, like one whose answer was lost: sent again, it inserts what is
missing. `read_status` and `read_overview` count the shards that answer and name the others; other reads fail, because
half a list looks like a whole one.

No call about one shard waits for another one longer than PATIENCE. Which shards there are and which are being drained
is asked beside the calls: a shard that is silent answers that question when it can, and gets no jobs without a key
meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

from reltask.errors import AmbiguousError, DatabaseError, ReltaskError, TransientError, UsageError
from reltask.model.doctor import Facts
from reltask.model.job import NewJob, Orphans
from reltask.model.merged import merge, merge_overviews, merge_status
from reltask.model.schema_name import split_schema
from reltask.model.screens import LATEST_FIRST, Page, page_of
from reltask.model.shards import Placement, ShardMark, no_shard_answers, shard_of
from reltask.model.views import JobEnd, ShardView
from reltask.stores.shard_connection import Shard, ShardedConnection
from reltask.stores.shard_keys import ShardedKeys, send
from reltask.stores.store import BATCH, Store, open_as_shard
from reltask.stores.waking import Wake

FRESH = 10.0
"""Seconds after which a producer reads again which shards are being drained."""
PATIENCE = 1.0
"""Seconds for which a call about one shard waits for another one."""
GLANCE = 5.0
"""Seconds for which a view of all shards waits for one of them, before it names it as away."""
Ask = Callable[["ShardedStore", str, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


class ShardedStore(ShardedKeys):
    """All shards of a system. Belongs to one event loop, as every store."""

    bulk = BATCH

    def __init__(self, shards: Sequence[Shard], placement: Placement) -> None:
        self._shards = {shard.number: shard for shard in shards}
        self._open: set[int] = set()
        self._opening: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.placement = placement
        self._read_at = float("-inf")
        self._marking: dict[int, asyncio.Task[ReltaskError | None]] = {}
        """Shards that are being asked which one they are."""
        self._late: dict[asyncio.Future[Any], int] = {}
        """Questions and signals that no caller waits for any more, and their shards."""
        self._written: set[int] = set()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        route = ROUTES.get(verb)
        if route is None:
            raise AttributeError(f"{verb} is not sent to several shards at once")
        return lambda *args, **named: route(self, verb, args, named)

    # Opening

    async def open(self) -> None:
        """Open the shards. An error if none answers, or if one refuses; one that is late is opened when it answers."""
        self._read_at = time.monotonic()
        try:
            await self._first_marks(set(self._read_marks().values()))
        except BaseException:
            await self._forget()
            raise

    async def _first_marks(self, waiting: set[asyncio.Task[ReltaskError | None]]) -> None:
        """Wait for all of these answers, but once there is one only for a while."""
        answered, error = False, TransientError("")
        while waiting:
            patience = PATIENCE if answered else None
            done, waiting = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return
            for found in [task.result() for task in done]:
                if isinstance(found, TransientError):
                    error = found
                elif found is not None:
                    raise found
                answered = answered or found is None
        if not answered:
            raise no_shard_answers(error)

    async def close(self) -> None:
        await self._forget()
        await asyncio.gather(*(shard.store.close() for shard in self._shards.values()))
        self._open.clear()

    async def _forget(self) -> None:
        """End what runs beside the calls."""
        beside = [*self._marking.values(), *self._late]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)

    def dedicated(self, **options: Any) -> Store:
        """Of the first shard: only leases use it."""
        return self._shards[self.placement.home].store.dedicated(**options)

    async def _opened(self, number: int) -> Store:
        store = self._shards[number].store
        if number not in self._open:
            async with self._opening[number]:
                if number not in self._open:
                    await open_as_shard(store, number)
                    self._open.add(number)
        return store

    # Asking

    def wrote(self, number: int) -> None:
        """The next signal is for this shard, too."""
        self._written.add(number)

    def has(self, number: int | None) -> bool:
        return number in self._shards

    @property
    def numbers(self) -> list[int]:
        return list(self._shards)

    @property
    def home(self) -> int:
        return self.placement.home

    async def ask(self, number: int, question: Callable[[Store], Awaitable[Any]]) -> Any:
        """Ask one shard. Its number is in the error, if it does not answer."""
        try:
            answer = await question(await self._opened(number))
        except DatabaseError as error:
            if isinstance(error, TransientError | AmbiguousError):
                self.placement.did_not_answer(number, time.monotonic())
            raise type(error)(f"Shard {number}: {error.message}", remedy=error.remedy) from error
        self.placement.answered(number)
        return answer

    async def ask_all(
        self, question: Callable[[Store], Awaitable[Any]], numbers: Collection[int], *, patience: float | None = None
    ) -> dict[int, Any | ReltaskError]:
        """Ask several shards at once: the answers and the errors.

        With `patience` a shard that is silent for that many seconds does not answer; while an earlier question to it
        is open, it is not asked again.
        """
        open_still = {} if patience is None else self._late
        silent = {number for number in open_still.values() if self.placement.is_away(number, time.monotonic())}
        asked = {n: asyncio.ensure_future(self.ask(n, question)) for n in numbers if n not in silent}
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=patience)
        except BaseException:
            for task in asked.values():
                task.cancel()
            raise
        return {number: self._answer(number, asked.get(number), patience) for number in numbers}

    def _answer(self, number: int, question: asyncio.Future[Any] | None, patience: float | None) -> Any | ReltaskError:
        if question is None or not question.done():
            self._leave(number, question)
            return TransientError(f"Shard {number}: no answer within {patience} s.")
        error = question.exception()
        return error if isinstance(error, ReltaskError) else question.result()

    def _leave(self, number: int, question: asyncio.Future[Any] | None) -> None:
        """No caller waits for this answer any more; what it says about the shard is learnt nevertheless."""
        self.placement.did_not_answer(number, time.monotonic())
        if question is not None:
            self._late[question] = number
            question.add_done_callback(self._ended)

    def _ended(self, question: asyncio.Future[Any]) -> None:
        del self._late[question]
        if not question.cancelled():
            question.exception()  # it was the answer of a question that is over

    async def every(
        self, question: Callable[[Store], Awaitable[Any]], numbers: Collection[int] | None = None
    ) -> list[Any]:
        """The answers of all of these shards, or the first error."""
        found = await self.ask_all(question, self._shards if numbers is None else numbers)
        for answer in found.values():
            if isinstance(answer, ReltaskError):
                raise answer
        return list(found.values())

    # Producing

    async def placed(self, jobs: Sequence[NewJob]) -> list[int]:
        """The shard of each of these new jobs."""
        await self._refresh()
        return self.placement.place(jobs, time.monotonic())

    async def _refresh(self) -> None:
        """Read which shards are being drained, now and then. One that is away keeps its mark, and is not awaited."""
        now = time.monotonic()
        if now - self._read_at < FRESH:
            return
        self._read_at = now
        here = [task for number, task in self._read_marks().items() if not self.placement.is_away(number, now)]
        if here:
            await asyncio.wait(here, timeout=PATIENCE)

    def _read_marks(self) -> dict[int, asyncio.Task[ReltaskError | None]]:
        """Ask all shards at once which one they are, and whether they are being drained."""
        for number in self._shards.keys() - self._marking.keys():
            self._marking[number] = task = asyncio.ensure_future(self._read_mark(number))
            task.add_done_callback(lambda _, number=number: self._marking.pop(number))  # type: ignore[misc] # inferred
        return dict(self._marking)

    async def _read_mark(self, number: int) -> ReltaskError | None:
        with self._expected(number):
            try:
                mark: ShardMark = await self.ask(number, lambda store: store.read_shard())
            except ReltaskError as error:
                return error
        rest = self.placement.draining - {number}
        self.placement.draining = rest | {number} if mark.draining else rest
        return None

    @contextmanager
    def _expected(self, number: int) -> Iterator[None]:
        """A shard that is silent for PATIENCE gets no jobs that may live elsewhere, until it answers."""
        silent = asyncio.get_running_loop().call_later(
            PATIENCE, lambda: self.placement.did_not_answer(number, time.monotonic())
        )
        try:
            yield
        finally:
            silent.cancel()

    async def insert(self, verb: str, jobs: Sequence[NewJob], *, again: bool) -> set[UUID]:
        groups = self.by_shard(jobs, lambda job: job.id)
        self._written |= groups.keys()
        answers = await asyncio.gather(
            *(
                self._insert_on(number, partial(send, verb, (some,), {"again": again}))
                for number, some in groups.items()
            ),
            return_exceptions=True,
        )
        return _inserted(answers, len(jobs))

    async def _insert_on(self, number: int, question: Callable[[Store], Awaitable[Any]]) -> Any:
        with self._expected(number):
            return await self.ask(number, question)

    def by_shard(self, rows: Iterable[Any], id_of: Callable[[Any], UUID]) -> dict[int, list[Any]]:
        """These rows by the shard of their ids."""
        found: dict[int, list[Any]] = {}
        for row in rows:
            number = shard_of(id_of(row))
            found.setdefault(self.home if number is None or number not in self._shards else number, []).append(row)
        return found

    def borrow(self, connection: object) -> ShardedConnection:
        """The shards in the database of the user's own connection."""
        return ShardedConnection(self._shards, self.placement, connection)

    # Reading

    async def read_status(self) -> Any:
        found = await self.ask_all(lambda store: store.read_status(), self._shards, patience=GLANCE)
        away = [number for number, status in found.items() if isinstance(status, ReltaskError)]
        answers = [status for status in found.values() if not isinstance(status, ReltaskError)]
        if not answers:
            raise no_shard_answers(_transient(found.values()))
        return merge_status(answers, away)

    async def list_shards(self) -> list[ShardView]:
        """What each shard says about itself."""
        marks = await self.ask_all(lambda store: store.read_shard(), self._shards, patience=GLANCE)
        states = await self.ask_all(lambda store: store.read_status(), self._shards, patience=GLANCE)
        return [_view(number, marks[number], states[number]) for number in self._shards]

    async def examine(self, number: int | None = None) -> Facts:
        """Of the first shard, or this one, in any state: it is not opened."""
        return await self._shards[self.home if number is None else number].store.examine()

    async def drain(self, number: int, *, draining: bool) -> ShardView:
        """Let a shard get no new jobs, or some again, and say how many it still has."""
        if number not in self._shards:
            raise UsageError(f"There is no shard {number}.", remedy=f"Shards: {', '.join(map(str, self._shards))}.")
        if draining and number == self.home:
            raise UsageError(
                f"Shard {number} is the first one: schedules and leases live there.", remedy="Drain another one."
            )
        await self.ask(number, lambda store: store.drain_shard(draining=draining))
        self._read_at = float("-inf")
        mark = await self.ask(number, lambda store: store.read_shard())
        return _view(number, mark, await self.ask(number, lambda store: store.read_status()))

    async def audit_slice(self, *, after: UUID, rows: int) -> UUID | None:
        """The first of the ends of the shards' slices: none has more than `rows` rows up to there."""
        ends = await self.every(lambda store: store.audit_slice(after=after, rows=rows))
        return min((end for end in ends if end is not None), default=None)

    async def signal(self, due_at: datetime | None = None) -> None:
        """On the shards that were written to since the last signal; if there are none, on all."""
        written, self._written = self._written or set(self._open), set()
        signals = {asyncio.ensure_future(self._shards[number].store.signal(due_at)): number for number in written}
        if signals:
            _, late = await asyncio.wait(signals, timeout=PATIENCE)
            for signal in late:
                self._leave(signals[signal], signal)

    @asynccontextmanager
    async def listen(self, wake: Wake, **more: Any) -> AsyncIterator[bool]:
        """On the shards that answer. Without signals, if not all do."""
        now = time.monotonic()
        listening = [
            _Listening(self._shards[number].store, wake, more)
            for number in self._open
            if not self.placement.is_away(number, now)
        ]
        try:
            if listening:
                await asyncio.wait([one.begun for one in listening], timeout=PATIENCE)
            heard = [one.begun.done() and one.begun.result() for one in listening]
            yield len(heard) == len(self._shards) and all(heard)
        finally:
            for one in listening:
                one.task.cancel()
            await asyncio.gather(*(one.task for one in listening), return_exceptions=True)


class _Listening:
    """Listening on one shard, however long its connection takes."""

    def __init__(self, store: Store, wake: Wake, more: dict[str, Any]) -> None:
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether the shard has signals; False if listening failed."""
        self.task = asyncio.ensure_future(self._listen(store, wake, more))

    async def _listen(self, store: Store, wake: Wake, more: dict[str, Any]) -> None:
        try:
            async with store.listen(wake, **more) as heard:
                self.begun.set_result(heard)
                await asyncio.Event().wait()
        finally:
            if not self.begun.done():
                self.begun.set_result(False)


def sharded_store(stores: Mapping[int, Store], urls: Mapping[int, str], placement: Placement) -> Store:
    """All shards as one store, for producers and operators."""
    shards = [Shard(number, store, *split_schema(urls[number])) for number, store in stores.items()]
    return cast("Store", ShardedStore(shards, placement))


def _view(number: int, mark: Any, status: Any) -> ShardView:
    if isinstance(mark, ReltaskError) or isinstance(status, ReltaskError):
        return ShardView(number=number, answers=False)
    jobs = status.ready + status.suspended + status.due + status.running + status.expired + status.paused + status.dead
    return ShardView(number=number, answers=True, draining=mark.draining, jobs=jobs)


def _transient(errors: Iterable[Any]) -> TransientError:
    return next((error for error in errors if isinstance(error, TransientError)), TransientError(""))


def _inserted(answers: Sequence[Any], wanted: int) -> set[UUID]:
    """What was inserted on all shards, or AmbiguousError if only on some."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    inserted: set[UUID] = set()
    for answer in answers:
        inserted |= set() if isinstance(answer, BaseException) else answer
    if not errors:
        return inserted
    first = errors[0]
    if len(errors) == len(answers) or not isinstance(first, ReltaskError):
        raise first
    raise AmbiguousError(f"{len(inserted)} of {wanted} jobs are certainly inserted. {first}") from first


# ── Routes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _by_id(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The first argument is a job's id. One that names no shard is looked for on all."""
    number = shard_of(args[0])
    if router.has(number):
        router.wrote(number or 0)
        return await router.ask(number or 0, partial(send, verb, args, named))
    answer = None
    for other in router.numbers:
        answer = await router.ask(other, partial(send, verb, args, named))
        if answer:
            break
    return answer


async def _at_home(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return await router.ask(router.home, partial(send, verb, args, named))


async def _everywhere(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """On all shards; the answer of the first."""
    return (await router.every(partial(send, verb, args, named)))[0]


async def _results(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> list[JobEnd]:
    """The first argument is a list of ids."""
    unknown = [job_id for job_id in args[0] if not router.has(shard_of(job_id))]
    groups = router.by_shard([job_id for job_id in args[0] if job_id not in unknown], lambda job_id: job_id)
    answers = await asyncio.gather(
        *(router.ask(number, partial(send, verb, (ids, *args[1:]), named)) for number, ids in groups.items())
    )
    ends = [end for answer in answers for end in answer]
    if unknown:
        asked = await router.ask_all(partial(send, verb, (unknown, *args[1:]), named), router.numbers)
        ends += ends_of_unknown(unknown, list(asked.values()))
    return ends


def ends_of_unknown(job_ids: Sequence[UUID], answers: Sequence[list[JobEnd] | ReltaskError]) -> list[JobEnd]:
    """The ends of jobs that may live on any shard. A shard that does not have a job says that it is gone.

    So it is gone only if all say so; and one of which a shard says nothing has yet to end.
    """
    answered = [{end.job_id: end for end in answer} for answer in answers if not isinstance(answer, ReltaskError)]
    errors = [answer for answer in answers if isinstance(answer, ReltaskError)]
    found = []
    for job_id in job_ids:
        said = [ends.get(job_id) for ends in answered]
        ended = [end for end in said if end is not None and (end.outcome is not None or end.dead or end.recurring)]
        if not ended and None not in said:
            if errors:
                raise errors[0]
            ended = [end for end in said if end is not None]
        found += ended[:1]
    return found


async def _notices(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """To the shards of these ids; no caller waits for an answer."""
    numbers = {number for job_id in args[0] if router.has(number := shard_of(job_id))} or router.numbers
    asked = [number for number in numbers if number is not None]
    await router.ask_all(partial(send, verb, args, named), asked, patience=PATIENCE)


async def _orphans(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Orphans:
    """Children live with their parents."""
    numbers = {number for job_id in named["parents"] if router.has(number := shard_of(job_id))} or router.numbers
    asked = [number for number in numbers if number is not None]
    found = await router.every(partial(send, verb, args, named), asked)
    return Orphans(
        ended=[job for one in found for job in one.ended], stopping=[job for one in found for job in one.stopping]
    )


async def _signals(router: ShardedStore, _verb: str, args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
    """To the shard of the id; a signal to a key goes to all, and the one that has the job takes it."""
    asked = {
        number: [s for s in args[0] if s.job_id is None or shard_of(s.job_id) in (None, number)]
        for number in router.numbers
    }
    sent: dict[str, UUID] = {}
    for number, signals in asked.items():
        if signals:
            router.wrote(number)
            sent |= await router.ask(number, partial(send, "send_signals", (signals,), {}))
    return sent


def _merged(by: Callable[[Any], Any] | None = None, *, newest: bool = False, rows: bool = False) -> Ask:
    """On all shards: one list in the order of `by`, cut to `limit`. `rows`: rows about the same thing become one."""

    async def ask(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        answers = await router.every(partial(send, verb, args, named))
        found = [row for answer in answers for row in answer]
        found = merge(found) if rows else found
        found = found if by is None else sorted(found, key=by, reverse=newest)
        return found[: named.get("limit")]

    return ask


async def _runs(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    number = None if named.get("job_id") is None else shard_of(named["job_id"])
    asked = [number] if number is not None and router.has(number) else None
    answers = await router.every(partial(send, verb, args, named), asked)
    found = sorted((run for answer in answers for run in answer), key=lambda run: run.finished_at, reverse=True)
    return found[: named.get("limit", 100)]


async def _page(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Page[Any]:
    pages = await router.every(partial(send, verb, args, named))
    rows = sorted((row for page in pages for row in page.rows), key=lambda row: (row.at, row.job.id))
    rows = rows[::-1] if args[0] in LATEST_FIRST else rows
    limit = named.get("limit", 50)
    more = len(rows) > limit or any(page.next is not None for page in pages)
    return page_of([*rows[:limit], *rows[:1]] if more else rows[:limit], limit)


async def _overview(router: ShardedStore, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Of the shards that answer; it names the others. An engineer on call looks when one is away."""
    found = await router.ask_all(partial(send, verb, args, named), router.numbers, patience=GLANCE)
    answers = [one for one in found.values() if not isinstance(one, ReltaskError)]
    if not answers:
        raise no_shard_answers(_transient(found.values()))
    return merge_overviews(answers, [number for number, one in found.items() if isinstance(one, ReltaskError)])


ROUTES: dict[str, Ask] = {
    **dict.fromkeys(
        ["pause_job", "resume_job", "run_job_now", "retry_job", "discard_job", "read_job", "cancel_job"], _by_id
    ),
    **dict.fromkeys(
        [
            "read_steps",
            "read_waits",
            "forget_steps",
            "list_signals",
            "list_children",
            "read_payload",
            "read_job_limits",
        ],
        _by_id,
    ),
    **dict.fromkeys(["read_now", "read_declared", "declare_job", "list_schedules"], _at_home),
    **dict.fromkeys(["acquire_lease", "heartbeat_lease", "resign_lease", "signal_lease", "release_lease"], _at_home),
    **dict.fromkeys(["list_leases", "record_action", "end_action", "list_actions"], _at_home),
    **dict.fromkeys(["add_pause", "end_pause", "write_limit"], _everywhere),
    "read_limits": _at_home,
    **dict.fromkeys(["list_pauses", "list_limits"], _merged(rows=True)),
    "list_limit_keys": _merged(lambda key: (-key.waiting, -key.in_use, key.key), rows=True),
    **dict.fromkeys(["audit_limits", "audit_slots", "audit_durable", "find_jobs", "sample_runs"], _merged()),
    **dict.fromkeys(["list_workers", "list_metrics", "audit_waiting", "audit_losses"], _merged(rows=True)),
    "audit_tasks": _merged(lambda count: count.task, rows=True),
    "list_jobs": _merged(lambda job: job.due_at),
    "list_dead_errors": _merged(lambda letter: letter.dead_at, newest=True),
    "list_runs": _runs,
    "read_results": _results,
    "send_signals": _signals,
    **dict.fromkeys(["signal_cancel", "signal_awaited", "signal_ended"], _notices),
    "cancel_children": _orphans,
    "page_jobs": _page,
    "read_overview": _overview,
}
"""How each verb reaches the shards."""
OF_A_WORKER = frozenset(
    {"claim_jobs", "heartbeat_jobs", "read_holds", "complete_jobs", "fail_jobs", "release_jobs", "suspend_jobs"}
    | {"reclaim_jobs", "read_outcomes", "record_progress", "record_steps", "fold_marks", "read_cancelled"}
    | {"register_worker", "stop_worker", "transaction", "advisory_lock"}
    | {"mark_dead_workers", "prune_runs", "prune_records", "prune_keys", "roll_up_runs", "read_overdue"}
    | {"read_shard", "mark_shard", "drain_shard", "claim_limited", "recount_limits"}
)
"""Verbs about one shard: they are sent to its own store."""
