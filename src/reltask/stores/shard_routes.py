"""Which way each verb goes on several shards: by a job's id, to the first shard, or to all, with merged answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from reltask.errors import ReltaskError, TransientError
from reltask.model.job import Orphans
from reltask.model.merged import merge, merge_overviews
from reltask.model.screens import LATEST_FIRST, Page, page_of
from reltask.model.shards import no_shard_answers, shard_of
from reltask.model.views import JobEnd
from reltask.stores.shard_keys import send

if TYPE_CHECKING:
    from reltask.stores.shards import ShardedStore

PATIENCE = 1.0
"""Seconds for which a call about one shard waits for another one."""
GLANCE = 5.0
"""Seconds for which a view of all shards waits for one of them, before it names it as away."""
Ask = Callable[["ShardedStore", str, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


def any_transient(errors: Iterable[Any]) -> TransientError:
    """One of these errors that is transient."""
    return next((error for error in errors if isinstance(error, TransientError)), TransientError(""))


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
        raise no_shard_answers(any_transient(found.values()))
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
