"""Shards: several complete installs that are used as one system. Which job lives on which of them.

    a child            where its parent lives
    a schedule         on the first shard, with everything that must exist once
    a job with a key   where rendezvous hashing of the key puts it, from every process
    in a transaction   on the shard of the transaction's connection; a key that lives elsewhere is an error
    any other job      on any shard that answers and is not being drained

A job never moves. Its id carries the number of its shard, so every later call finds it without a search:

    0192 aa31 5f20  8  003   a41c 92d0 77e1 0b3f       version 8 of RFC 9562: "the layout is the maker's own"
    └─ time, ms ─┘  │  │     └─ random ────────┘
                    │  └ the shard: 12 bits
                    └ version 8; 7 or 4: an id from before there were shards, which is looked for on all of them

Rendezvous hashing gives each pair of key and shard a number, and the shard with the highest wins. A
new shard takes over its share of the keys, and no key moves between the old ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from reltask.errors import ConfigurationError, SettingsError, TransientError, UsageError
from reltask.model.job import NewJob
from reltask.model.schema_name import split_schema, with_schema

MOST = 4096
"""Numbers of shards: 0 to 4095."""
AWAY = 30.0
"""Seconds for which a shard that did not answer gets no jobs that may live anywhere, unless it answers before."""
_VERSION = 8


class ShardMark(NamedTuple):
    """What an install says about itself."""

    number: int | None
    """None: it is no shard, but a whole system."""
    draining: bool
    """It gets no new jobs, and is to be removed when it is empty."""


def shard_of(job_id: UUID) -> int | None:
    """The shard that this job lives on; None if its id does not say."""
    return job_id.int >> 64 & (MOST - 1) if job_id.version == _VERSION else None


def rendezvous(key: str, shards: Iterable[int]) -> int:
    """The shard on which a job with this key lives."""
    return max(shards, key=lambda shard: (_weight(key, shard), shard))


def _weight(key: str, shard: int) -> bytes:
    return blake2b(key.encode(), digest_size=8, key=b"%d" % shard).digest()


def is_free(job: NewJob) -> bool:
    """Whether a job may live on any shard."""
    return job.parent is None and job.schedule is None and job.key is None and job.unique is None


class Placement:
    """Where new jobs go. Time is an argument, in seconds."""

    def __init__(self, numbers: Sequence[int], rng: random.Random) -> None:
        self.numbers = tuple(numbers)
        self.draining: frozenset[int] = frozenset()
        self._rng = rng
        self._away: dict[int, float] = {}

    @property
    def home(self) -> int:
        """The shard with everything that exists once: schedules and leases."""
        return self.numbers[0]

    @property
    def open(self) -> tuple[int, ...]:
        """The shards that get new jobs."""
        return tuple(number for number in self.numbers if number not in self.draining) or self.numbers

    def did_not_answer(self, number: int, now: float) -> None:
        """This shard is away: for a while, choose another where there is a choice."""
        self._away[number] = now + AWAY

    def answered(self, number: int) -> None:
        self._away.pop(number, None)

    def is_away(self, number: int, now: float) -> bool:
        """Whether this shard did not answer lately."""
        return self._away.get(number, 0.0) > now

    def of_key(self, key: str) -> int:
        """The shard of a job with this key."""
        return rendezvous(key, self.open)

    def before(self, key: str) -> list[int]:
        """Where else a job with this key may live still: a shard that is drained, or where it was before the last one.

        Looked at before a job with the key is inserted, so that adding or draining a shard makes no second one.
        """
        now, older = self.of_key(key), [number for number in self.open if number != max(self.open)]
        found = [rendezvous(key, older)] if older and now not in older else []
        return [*found, *(number for number in self.numbers if number in self.draining and number != now)]

    def anywhere(self, now: float, among: Sequence[int] | None = None) -> int:
        """A shard for a job that may live on any of these."""
        possible = [number for number in self.open if among is None or number in among] or list(among or self.open)
        here = [number for number in possible if not self.is_away(number, now)]
        return self._rng.choice(here or possible)

    def place(self, jobs: Sequence[NewJob], now: float, among: Sequence[int] | None = None) -> list[int]:
        """The shard of each of these new jobs.

        `among`: only these can be reached; UsageError for a job that lives elsewhere.
        """
        free = self.anywhere(now, among)
        return [self._reached(job, self._choose(job, free), among) for job in jobs]

    def _choose(self, job: NewJob, free: int) -> int:
        if job.parent is not None:
            number = shard_of(job.parent.job_id)
            return self.home if number is None else number
        if job.schedule is not None:
            return self.home
        key = job.key if job.unique is None else job.unique.key
        return free if key is None else self.of_key(key)

    def _reached(self, job: NewJob, number: int, among: Sequence[int] | None) -> int:
        if among is None or number in among:
            return number
        what = "A schedule" if job.schedule is not None else "The key of a unique task" if job.unique else "The key"
        raise UsageError(
            f"{what} belongs to shard {number}, and this transaction is on shard {', '.join(map(str, among))}.",
            remedy="Enqueue it after the commit, or leave out the key.",
        )


class Here(NamedTuple):
    """The shard of a worker's transaction."""

    number: int
    placement: Placement

    def place(self, jobs: Sequence[NewJob]) -> list[int]:
        """The shard of these jobs: this one. UsageError for a job that lives elsewhere."""
        return self.placement.place(jobs, 0.0, [self.number])

    def refuse_elsewhere(self, job_ids: Iterable[UUID | None]) -> None:
        """UsageError for a job of another shard, which this transaction cannot write to."""
        for job_id in job_ids:
            if job_id is not None and shard_of(job_id) not in (None, self.number):
                raise UsageError(
                    f"The job {job_id} lives on another shard than this transaction.",
                    remedy="Send the signal after the commit.",
                )


class ShardUrls(NamedTuple):
    """The `shards=` of an app."""

    given: tuple[str | None, ...] = ()
    """URLs by number; None for a shard that was removed."""
    schemas: int = 0
    """Schemas in one database, numbered from 0."""

    def url(self, url: str | None) -> str | None:
        """The app's URL: that of the first shard, if they have their own."""
        return next((one for one in self.given if one is not None), url)

    def placement(self, rng: random.Random) -> Placement | None:
        numbers = [number for number, url in enumerate(self.given) if url is not None] or range(self.schemas)
        return Placement(numbers, rng) if numbers else None

    def urls(self, url: str) -> dict[int, str]:
        """The URL of each shard."""
        base, schema = split_schema(url)
        in_schemas = {number: with_schema(base, f"{schema}_{number}") for number in range(self.schemas)}
        return in_schemas or {number: one for number, one in enumerate(self.given) if one is not None}


def read_shards(url: str | None, shards: int | Sequence[str | None] | None) -> ShardUrls:
    """The `shards=` of an app, or ConfigurationError."""
    if shards is None:
        return ShardUrls()
    if isinstance(shards, int):
        if 1 <= shards <= MOST:
            return ShardUrls(schemas=shards)
        raise ConfigurationError(f"shards={shards} is not a number from 1 to {MOST}.", remedy="Write shards=8.")
    given = tuple(shards)
    urls = [one for one in given if one is not None]
    if isinstance(shards, str) or not urls or len(given) > MOST or len(set(urls)) < len(urls):
        raise ConfigurationError(
            "shards= is not a list of different URLs.",
            remedy='Write shards=["postgresql://host/db?schema=reltask_0", …], or a number of schemas: shards=8.',
        )
    if url is not None:
        raise ConfigurationError(
            "An app with a list of shards has no URL of its own.", remedy="Leave it out, or write shards=8 beside it."
        )
    return ShardUrls(given)


def numbered(job_id: UUID, shard: int) -> UUID:
    """The id with the number of this shard; its time and its random part stay."""
    return UUID(int=job_id.int & ~(0xFFFF << 64) | _VERSION << 76 | shard << 64)


def check_number(mark: ShardMark, number: int) -> None:
    """Refuse an install that is another shard than the settings say: ids and keys would lead elsewhere."""
    if mark.number == number:
        return
    if mark.number is None:
        raise SettingsError(
            f"The install for shard {number} is not numbered as one.",
            remedy="Run: reltask migrate. It numbers the shards in the order of shards=.",
        )
    raise SettingsError(
        f"The install for shard {number} is shard {mark.number}.",
        remedy="Keep the order of shards=: write None for a shard that was removed, and add new ones at the end.",
    )


def no_shard_answers(error: TransientError) -> TransientError:
    """None of the shards can be reached."""
    return TransientError(f"No shard answers. {error.message}", remedy="Check the databases, and the URLs of shards=.")
