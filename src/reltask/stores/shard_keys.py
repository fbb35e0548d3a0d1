"""Keys in a system of shards: one job per key, also while a shard is added or drained.

A key has one shard, whose constraint decides. When a shard is added or drained, some keys get another
one, and jobs that have them stay where they are. So a producer looks first where else a job with the key
may live. That is a look, not a constraint: docs/shards.md says what it leaves open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from reltask.model.job import NewJob, State
from reltask.model.shards import Placement, shard_of
from reltask.model.views import JobView
from reltask.stores.store import Store

Names = Sequence[tuple[str, str]]
Owners = dict[tuple[str, str], UUID]


class ShardedKeys:
    """The verbs of a sharded store that are about keys."""

    placement: Placement
    ask: Callable[[int, Callable[[Store], Awaitable[Any]]], Awaitable[Any]]
    every: Callable[[Callable[[Store], Awaitable[Any]]], Awaitable[list[Any]]]
    insert: Callable[..., Awaitable[set[UUID]]]
    wrote: Callable[[int], None]

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        taken = set() if again else await self._keys_elsewhere(jobs)
        return await self.insert("enqueue_jobs", [job for job in jobs if job.id not in taken], again=again)

    async def enqueue_unique(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        taken = set() if again else {job.id for job in jobs if await self._unique_elsewhere(job)}
        return await self.insert("enqueue_unique", [job for job in jobs if job.id not in taken], again=again)

    async def read_keys(self, names: Names) -> Owners:
        return await self._owners("read_keys", names)

    async def read_unique(self, names: Names) -> Owners:
        return await self._owners("read_unique", names)

    async def _owners(self, verb: str, names: Names) -> Owners:
        """The newest job of each name: where its key belongs now or belonged before, else on any shard.

        So a key is found while a shard that never had it is away. A child's key is on its parent's shard, and a
        schedule's on the first one.
        """
        found: Owners = {}
        for number, some in self._likely(names).items():
            found = newest([found, await self.ask(number, partial(send, verb, (some,), {}))])
        missing = [name for name in names if name not in found]
        if missing:
            found |= newest(await self.every(partial(send, verb, (missing,), {})))
        return found

    def _likely(self, names: Names) -> dict[int, list[tuple[str, str]]]:
        asked: dict[int, list[tuple[str, str]]] = {}
        for name in names:
            key = name[1]
            for number in {self.placement.of_key(key), *self.placement.before(key)}:
                asked.setdefault(number, []).append(name)
        return asked

    async def replace_job(self, job: NewJob) -> UUID | None:
        """Where a job with its key lives: where it belonged before, or on the shard that the new id carries."""
        former = [] if job.unique is None else self.placement.before(job.unique.key)
        for number in (*former, shard_of(job.id) or self.placement.home):
            replaced: UUID | None = await self.ask(number, lambda store: store.replace_job(job))
            if replaced is not None:
                self.wrote(number)
                return replaced
        return None

    async def _keys_elsewhere(self, jobs: Sequence[NewJob]) -> set[UUID]:
        """The jobs whose key another job has, on a shard where the key lived before."""
        asked: dict[int, list[NewJob]] = {}
        for job in jobs:
            for number in self.placement.before(job.key) if job.key and job.schedule is None else []:
                asked.setdefault(number, []).append(job)
        taken: set[UUID] = set()
        for number, some in asked.items():
            names = [(job.task, job.key or "") for job in some]
            found = await self.ask(number, partial(send, "read_keys", (names,), {}))
            taken |= {job.id for job in some if (job.task, job.key) in found}
        return taken

    async def _unique_elsewhere(self, job: NewJob) -> bool:
        """Whether a job that lives on another shard has the key of this unique one."""
        if job.unique is None:
            return False
        name = (job.task, job.unique.key)
        for number in self.placement.before(job.unique.key):
            owner = (await self.ask(number, partial(send, "read_unique", ([name],), {}))).get(name)
            view = owner and await self.ask(number, partial(send, "read_job", (owner,), {}))
            if view is not None and has_its_key(view, until_start=job.unique.until_start):
                return True
        return False


def has_its_key(job: JobView, *, until_start: bool) -> bool:
    """Whether a unique job that is there still has its key."""
    return job.state is not State.DEAD and not (until_start and job.attempt > 0)


def newest(answers: Iterable[Owners]) -> Owners:
    """One job for each name: of several the newest, because an id begins with the time at which it was made."""
    found: Owners = {}
    for answer in answers:
        found |= {name: max(job_id, found.get(name, job_id)) for name, job_id in answer.items()}
    return found


async def send(verb: str, args: tuple[Any, ...], named: dict[str, Any], store: Store) -> Any:
    """One verb to one shard."""
    return await getattr(store, verb)(*args, **named)
