"""Limits in the simulation: their tasks, operators that change them, and what must hold after every statement.

    places     after a claim no key has more claims than its limit allows, by the limit of that moment
    tokens     in no window a key has more starts than rate × window + burst; resumed functions are no starts
    order      first come, first served, within one key and priority
    counts     places counted = claimed jobs + places in marks, for every key, after every statement
    room       a due job that fits is not left waiting: `World.claimable` asks `may_start`

All of it is counted here from the committed rows, without a statement of reltask.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reltask import App, Backoff, Context, Limit
from reltask.model.control import Pause, PauseKind
from reltask.model.job import Claim
from reltask.model.limit import LimitRule
from tests.simulation.durable import reported
from tests.simulation.invariants import MICROS, Violation, changed_nothing
from tests.simulation.workload import LOCK_TIMEOUT

if TYPE_CHECKING:
    from tests.simulation.world import World  # for types only

SHARE = 0.125
"""The share of histories with limits."""
APP = App("sqlite:///unused.db")
NARROW = Limit("narrow", running=2)
PACED = Limit("paced", running=3, rate="2/5s", burst=2)
OWN = Limit("own", running=1, by="customer")
CUSTOMERS = 3
ROUNDING = 1e-6
"""Of a token: they are counted in floating point."""
patient = APP.task(max_attempts=8, backoff=Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=8)), limit=NARROW)


def is_limited(seed: int) -> bool:
    """Whether this history has limits. Asked without the history's own random numbers."""
    return random.Random(f"limits:{seed}").random() < SHARE


def luck(ctx: Context) -> random.Random:
    """The random numbers of a run."""
    return random.Random(f"{ctx.task}:{ctx.job_id}:{ctx.fence}")


async def rest(ctx: Context, most: float) -> None:
    """Take some time, and fail now and then: the job waits for its backoff, without a place."""
    rng = luck(ctx)
    await asyncio.sleep(rng.uniform(0, most))
    if rng.random() < 0.2:
        raise ValueError("no luck")


@patient
async def narrow(ctx: Context, customer: int) -> None:  # noqa: ARG001 - all tasks have the same parameters
    """Shares its limit with `both`; runs sometimes longer than its lock."""
    await reported(ctx, rest(ctx, 1.5 * LOCK_TIMEOUT if luck(ctx).random() < 0.2 else 1.0))


@APP.task(max_attempts=8, backoff="2s", limit=(NARROW, OWN))
async def both(ctx: Context, customer: int) -> None:  # noqa: ARG001 - its limit counts by it
    """Needs a place of two keys."""
    await reported(ctx, rest(ctx, 3.0))


@APP.task(max_attempts=8, backoff="2s", limit=PACED)
async def paced(ctx: Context, customer: int) -> None:  # noqa: ARG001 - as above
    """Needs a token for each start."""
    await reported(ctx, rest(ctx, 1.0))


@APP.task(max_attempts=8, backoff="2s", limit=PACED)
async def napping(ctx: Context, customer: int) -> None:
    """Is suspended in between: it gives its place back, and needs none of the tokens when it resumes."""

    async def work() -> None:
        await asyncio.sleep(luck(ctx).uniform(0, 1))
        await ctx.sleep("nap", timedelta(seconds=customer))

    await reported(ctx, work())


class Row(NamedTuple):
    """A job with limits."""

    id: str
    task: str
    limit_key: str
    limits: str | None
    locked_by: str | None
    priority: int
    due_at: int
    paused_at: int | None
    dead_at: int | None
    suspended: int
    isolated: int

    @property
    def keys(self) -> list[str]:
        return [self.limit_key] if self.limits is None else msgspec.json.decode(self.limits, type=list[str])


ROWS = f"select {', '.join(Row._fields)} from reltask_jobs where limit_key is not null"
FREED = "select name, sum(freed) as freed from reltask_marks where kind = 'limit' group by name"


class LimitInspector:
    """Counts places and starts after every statement."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._query = world.database.query
        self._rows: dict[str, Row] = {}
        self._starts: dict[str, list[float]] = defaultdict(list)
        self._moment = 0
        self._elapsed = 0.0
        """Seconds by the database's clock; where that is set back, no time has passed."""

    def __call__(self, verb: str, _args: tuple[Any, ...], answer: Any) -> None:
        now = self._world.micros()
        self._elapsed += max(0, now - self._moment) / MICROS if self._moment else 0.0
        self._moment = now
        if changed_nothing(verb, answer):
            return
        before, self._rows = self._rows, {row[0]: Row._make(row) for row in self._query(ROWS)}
        claims = answer.claims if verb in ("claim_jobs", "claim_limited") else ()
        limited = [claim for claim in claims if str(claim.job_id) in self._rows]
        if verb == "claim_jobs" and limited:
            raise Violation("limited jobs need a limited claim", limited[0].task)
        if limited:
            self._places(limited)
            self._in_order(limited)
            self._tokens([claim for claim in limited if not before[str(claim.job_id)].suspended])
        self._counts()

    def held(self) -> Counter[str]:
        """Claimed jobs of each key."""
        return Counter(key for row in self._rows.values() if row.locked_by is not None for key in row.keys)

    def _rules(self) -> dict[str, Any]:
        return {row["name"]: row for row in self._query("select * from reltask_limits")}

    def _places(self, claims: list[Claim]) -> None:
        rules, held = self._rules(), self.held()
        for key in {key for claim in claims for key in self._rows[str(claim.job_id)].keys}:
            most = rules[key.partition(":")[0]]["running"]
            if most is not None and held[key] > most:
                raise Violation("valid claims of a key ≤ its limit", f"{key}: {held[key]} at a limit of {most}")

    def _tokens(self, claims: list[Claim]) -> None:
        rules = self._rules()
        for claim in claims:
            for key in self._rows[str(claim.job_id)].keys:
                rule = rules[key.partition(":")[0]]
                if rule["rate_count"] is None:
                    continue
                starts = self._starts[key]
                starts.append(self._elapsed)
                for nth, first in enumerate(starts):
                    window, count = self._elapsed - first, len(starts) - nth
                    if count > rule["burst"] + window * 1000 * rule["rate_count"] / rule["rate_period_ms"] + ROUNDING:
                        raise Violation("starts ≤ rate × window + burst", f"{key}: {count} in {window} s")

    def _in_order(self, claims: list[Claim]) -> None:
        """Between jobs of one task and priority that wait for the same key, and for no other."""
        for claim in claims:
            row = self._rows[str(claim.job_id)]
            for other in self._rows.values():
                if (
                    (other.task, other.priority, other.limit_key) == (row.task, row.priority, row.limit_key)
                    and (other.isolated, other.suspended, other.limits, row.limits) == (0, 0, None, None)
                    and self._waits(other)
                    and other.due_at < row.due_at
                    and not claim.steps
                ):
                    raise Violation("first come, first served", f"{row} before {other}")

    def _waits(self, row: Row) -> bool:
        return row.locked_by is None and row.paused_at is None and row.dead_at is None and row.due_at < self._moment

    def _counts(self) -> None:
        freed = {row["name"]: row["freed"] for row in self._query(FREED)}
        counted = {row["key"]: row["running"] for row in self._query("select key, running from reltask_limit_keys")}
        held = self.held()
        for key in {*counted, *held}:
            places = counted.get(key, 0) - freed.get(key, 0)
            if places != held[key]:
                raise Violation("places counted = claimed jobs", f"{key}: {places} counted, {held[key]} claimed")

    def may_start(self, job_id: str) -> bool:
        """Whether each of a job's keys has a place for it, and a token if it needs one. True: it has no limit.

        False while no worker has declared one of its limits.
        """
        row = self._rows.get(job_id)
        if row is None:
            return True
        rules, held = self._rules(), self.held()
        if not all(key.partition(":")[0] in rules for key in row.keys):
            return False
        counters = {one["key"]: one for one in self._query("select * from reltask_limit_keys")}
        return all(
            (rule["running"] is None or held[key] < rule["running"])
            and (rule["rate_count"] is None or row.suspended or self._has_token(rule, counters.get(key)))
            for key in row.keys
            for rule in [rules[key.partition(":")[0]]]
        )

    def _has_token(self, rule: Any, counter: Any) -> bool:
        if counter is None:
            return True
        seconds = max(0, self._world.micros() - counter["refilled_at"]) / MICROS
        return bool(counter["tokens"] + seconds * 1000 * rule["rate_count"] / rule["rate_period_ms"] >= 1)


class Limits:
    """The jobs with limits of one history, and the operators that change limits."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"limits of:{world.seed}")
        self.is_on = is_limited(world.seed)
        self.inspector = LimitInspector(world)
        self._disturbing: asyncio.Task[None] | None = None

    def tasks(self, *, knows_all: bool) -> list[Any]:
        """What a worker knows of them; an older version does not know everything."""
        if not self.is_on:
            return []
        names = [task.name for task in APP.registry]
        missing = None if knows_all or self.rng.random() < 0.8 else self.rng.choice(names)
        return [task for task in APP.registry if task.name != missing]

    async def begin(self) -> None:
        if not self.is_on:
            return
        await self.enqueue(self.rng.randint(8, 16))
        self._disturbing = self.world.loop.spawn("world", self.disturb())

    async def enqueue(self, count: int) -> None:
        for _ in range(count):
            task = self.rng.choice((narrow, both, both, paced, napping))
            options = {"delay": self.rng.choice(["0s", "0s", "0s", "4s"]), "priority": self.rng.choice([3, 3, 5])}
            call = task.using(**options).call(self.rng.randrange(CUSTOMERS))  # type: ignore[arg-type] # either fits
            await self.world.enqueue_call(call, self.rng)

    async def disturb(self) -> None:
        """Change limits, enqueue, and count again, until the faults end."""
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 2.5))
            if self.world.quiet:
                return
            (act,) = self.rng.choices([self.change, self.more, self.pause, self.recount], weights=[4, 2, 2, 1])
            self.world.note(act.__name__)
            await act()

    async def more(self) -> None:
        await self.enqueue(self.rng.randint(1, 4))

    async def change(self) -> None:
        """An operator changes how many may run: also to none, and below what runs."""
        limit = self.rng.choice((NARROW, OWN, PACED))
        await self.write(limit, self.rng.choice([0, 1, 2, 3, None]))

    async def pause(self) -> None:
        """An operator pauses one of the tasks for a while: what of it is due holds no place."""
        task = self.rng.choice([task.name for task in APP.registry])
        pause = Pause(kind=PauseKind.TASK, name=task, paused_by="operator")
        await self.world.as_operator(lambda store: store.add_pause(pause))
        self.world.loop.spawn("world", self.world.misfortunes.resume_lane(pause, self.rng.choice([2.0, 8.0])))

    async def write(self, limit: Limit, running: int | None) -> None:
        rule = limit.rule(str(limit.name))

        async def change(store: Any) -> None:
            known: list[LimitRule] = await store.read_limits()
            if any(one.name == rule.name for one in known):
                await store.write_limit(msgspec.structs.replace(rule, running=running), seen=rule.declaration)
                await store.signal()

        await self.world.as_operator(change)

    async def recount(self) -> None:
        """What the maintenance does every minute."""

        async def count(store: Any) -> None:
            if await store.recount_limits():
                await store.signal()

        await self.world.as_operator(count)

    async def help_on(self) -> None:
        """A mark may have been used up before the database's clock was set back: the maintenance finds such a job."""
        if self.is_on and self.world.clock_jumped:
            await self.recount()

    async def calm(self) -> None:
        """The faults are over: the limits are as the code declares them."""
        if self._disturbing is None:
            return
        await self._disturbing
        for limit in (NARROW, OWN, PACED):
            await self.write(limit, limit.running)
