"""Candidates for one lease, over one SQLite file: one seed, one history.

    candidates ─► the real Leader, the real SQL ─► a line with faults ─► every statement checked at once
        └─ the leader writes into a table, guarded by its term, whether or not it still trusts itself

Crashes, pauses, lost and late messages, jumps of the database's clock, and an operator who releases
the lease. Bodies are careless on purpose: they go on writing after their term has ended, and some
keep their transaction open during a pause.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from reltask import events
from reltask.errors import AmbiguousError, TransientError
from reltask.leases.leader import TRY_SHARE, Leader
from reltask.model.lease import Grant, Term
from tests.simulation.database import START, Database
from tests.simulation.invariants import Violation
from tests.simulation.lease_faults import LeaseFaults
from tests.simulation.loop import PROCESS, SimLoop
from tests.simulation.network import Line, SimStore, Trouble

NAME = "reports"
TTL = timedelta(seconds=2)
SECONDS = TTL.total_seconds()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WRITTEN = "create table written (term integer, writer text)"
EMPTY = "delete from reltask_leases; delete from reltask_lease_waiters; delete from written;"
LEASE = "select * from reltask_leases"
LED_WITHIN = 60.0
"""Seconds after the last fault: more than the longest pause after a failure, plus a TTL."""


class LeaseDatabase(Database):
    """The tables of leases, and one that leaders write to."""

    def prepare(self) -> None:
        self.session.connection().execute(WRITTEN)

    def empty(self) -> None:
        super().empty()
        self.session.connection().executescript(EMPTY)


class LeaseLine(SimStore):
    """A connection on which answers can be slow too, and signals of resignations can be lost."""

    def __init__(self, *args: Any, world: LeaseWorld, candidate: Candidate, **options: Any) -> None:
        super().__init__(*args, **options)
        self._world, self._candidate = world, candidate

    async def signal_lease(self, name: str) -> None:
        await self._travel()
        self._world.signal_resignation(name)

    async def _call(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if verb == "heartbeat_lease":
            self._world.renews(self._candidate, args[0])
        if self._line.trouble is not Trouble.SLOW:
            return await super()._call(verb, args, options)
        return await self._execute_slowly(verb, args, options)

    async def _execute_slowly(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """On a line that is about to break, the answer is slow."""
        await self._travel()
        self._line.bites += 1
        answer = await self._execute(verb, args, options)
        await self._clock.sleep(self._line.rng.uniform(0, self._timeout))
        if self._line.rng.random() < 0.3:
            self._line.trouble, self._line.share = Trouble.REQUEST_LOST, 1.0
        return answer


class LeaseClock:
    """Monotonic time of the simulated machines."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Candidate:
    """One process that tries to lead."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.line = Line(rng)
        self.alive = True
        """Whether it still tries to lead. One that was asked to stop may still trust itself."""
        self.crashed = False
        self.leader: Leader
        self.store: LeaseLine
        self.announced: set[Term] = set()
        """Terms whose loss was announced to this process."""
        self.held: Term | None = None


class Errors(logging.Handler):
    """An error in the log is a finding: none is expected."""

    def __init__(self, world: LeaseWorld) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else record.exc_info[1]
        if error is not None and not isinstance(error, Violation):
            with suppress(Violation):
                self._world.break_off(Violation("no unforeseen error", repr(error)))


class LeaseWorld:
    """The whole history of one seed."""

    def __init__(self, seed: int, database: LeaseDatabase) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop(random.Random(self.rng.getrandbits(64)))
        self.clock = LeaseClock(self.loop)
        self.database = database
        self.offset = timedelta(0)
        database.now = self.now
        self.candidates: list[Candidate] = []
        self.taken_away: set[int] = set()
        self.winners: dict[int, str] = {}
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.notes: list[tuple[object, ...]] = []
        self.violation: Violation | None = None
        self.misfortunes = LeaseFaults(self)
        self._numbers = 0

    def now(self) -> datetime:
        """The database's clock."""
        return START + timedelta(microseconds=round(self.loop.time() * 1e6)) + self.offset

    def note(self, *what: object) -> None:
        self.notes.append((round(self.loop.time(), 9), *what))

    def trace(self) -> str:
        """The hash of everything that happened."""
        return hashlib.sha256(repr(self.notes).encode()).hexdigest()

    # Running

    def run(self) -> None:
        """Run the whole history of this seed, or raise a Violation."""
        logger, errors = logging.getLogger("reltask"), Errors(self)
        logger.propagate = False
        logger.addHandler(errors)
        try:
            self.loop.run_until_complete(self.loop.create_task(self.history()))
            self.audit()
        except RuntimeError as error:  # the loop was stopped by a violation, or by an error that is one
            raise self.violation or error from None
        finally:
            logger.removeHandler(errors)
            logger.propagate = True
            self.throw_away()
            self.database.empty()

    def throw_away(self) -> None:
        """Close open coroutines while no loop runs, so that `finally` blocks do not run in the next history."""
        self.loop.close()
        for task in self.loop.tasks:
            work: Any = task.get_coro()
            with suppress(Exception):
                work.close()

    async def history(self) -> None:
        for _ in range(self.rng.randint(2, 4)):
            self.start()
        end = self.loop.time() + self.rng.uniform(20, 50)
        while self.loop.time() < end:
            await asyncio.sleep(self.rng.expovariate(1 / 1.5))
            await self.misfortunes.strike()
        await self.heal()

    async def heal(self) -> None:
        """All faults end: within LED_WITHIN a candidate leads, and trusts itself."""
        self.note("heal")
        for candidate in self.candidates:
            candidate.line.trouble = Trouble.NONE
            self.loop.resume(candidate.name)
        self.start()
        limit = self.loop.time() + LED_WITHIN
        while not self.trusting():
            if self.loop.time() > limit:
                raise Violation("a candidate leads", f"none for {LED_WITHIN} s: {self.row()}")
            await asyncio.sleep(0.1)

    def audit(self) -> None:
        """In the order of the writes, terms never decrease."""
        terms = [row["term"] for row in self.database.query("select term from written order by rowid")]
        self.counts["terms"] += (self.row() or {"term": 0})["term"]
        if terms != sorted(terms):
            raise Violation("no write from an old term", f"written in this order: {terms}")

    def break_off(self, violation: Violation) -> None:
        """An error inside a candidate must not be lost with its task: it ends the history."""
        self.violation = self.violation or violation
        self.loop.stop()
        raise violation

    # Candidates

    def start(self) -> Candidate:
        self._numbers += 1
        candidate = Candidate(f"c{self._numbers}", random.Random(self.rng.getrandbits(64)))
        candidate.line.trouble = self.rng.choice([Trouble.NONE, Trouble.NONE, Trouble.SLOW])
        self.loop.spawn("world", self.misfortunes.repair_later(candidate.line))
        candidate.store = self.store(candidate)
        candidate.leader = self.make_leader(candidate)
        self.candidates.append(candidate)
        self.note("start", candidate.name)
        self.loop.spawn(candidate.name, candidate.leader.run())
        return candidate

    def store(self, candidate: Candidate) -> LeaseLine:
        return LeaseLine(
            self.database,
            line=candidate.line,
            clock=self.clock,
            inspect=self.inspect,
            timeout=SECONDS / TRY_SHARE,
            land=lambda work: self.loop.spawn("world", work),
            world=self,
            candidate=candidate,
        )

    def operator(self) -> LeaseLine:
        """An operator, with a separate connection."""
        return self.store(Candidate("operator", self.rng))

    def make_leader(self, candidate: Candidate) -> Leader:
        chance = self.rng.random
        return Leader(
            candidate.store,
            name=NAME,
            holder=candidate.name,
            ttl=TTL,
            clock=self.clock,
            rng=candidate.rng,
            emit=lambda event: self.heard(candidate, event),
            rotate_after=timedelta(seconds=6) if chance() < 0.3 else None,
            max_stall=timedelta(seconds=4) if chance() < 0.3 else None,
            acquired=lambda term: self.acquired(candidate, term),
            lost=lambda _: self.lost(candidate),
        )

    def acquired(self, candidate: Candidate, term: Term) -> None:
        candidate.held = term
        self.loop.create_task(self.lead(candidate, term))

    def lost(self, candidate: Candidate) -> None:
        assert candidate.held is not None
        candidate.announced.add(candidate.held)

    def heard(self, candidate: Candidate, event: events.Event) -> None:
        self.note("event", candidate.name, type(event).__name__)
        self.counts[type(event).__name__] += 1
        self.check_trust()

    async def lead(self, candidate: Candidate, term: Term) -> None:
        """A careless body: it goes on writing after its lease is lost."""
        for _ in range(candidate.rng.randint(3, 40)):
            await asyncio.sleep(candidate.rng.uniform(0.05, 0.6))
            with suppress(TransientError, AmbiguousError):
                await self.write(candidate, term)
                if candidate.rng.random() < 0.7:
                    candidate.leader.worked(items=1)

    async def write(self, candidate: Candidate, term: Term) -> None:
        async with candidate.store.transaction() as tx:
            if not await tx.guard_lease(term):
                self.counts["refused"] += 1
                raise TransientError("refused: rolled back")
            if candidate.rng.random() < 0.15:
                await asyncio.sleep(candidate.rng.uniform(0, 0.4))
            await tx.execute("insert into written values (:term, :writer)", term=term.number, writer=candidate.name)

    def signal_resignation(self, name: str) -> None:
        """Signals can get lost."""
        for candidate in self.living():
            if self.rng.random() < 0.7:
                candidate.leader.hint(name)

    def living(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.alive]

    def trusting(self) -> list[Candidate]:
        return [candidate for candidate in self.living() if candidate.leader.term is not None]

    # What must hold

    def row(self) -> dict[str, Any] | None:
        rows = self.database.query(LEASE)
        return dict(rows[0]) if rows else None

    def inspect(self, verb: str, args: tuple[Any, ...]) -> Callable[[Any], None]:
        before, now = self.row(), (self.now() - EPOCH) // timedelta(microseconds=1)

        def after(answer: Any) -> None:
            self.note(verb, PROCESS.get(), repr(answer) if isinstance(answer, bool) else "")
            try:
                self.check(verb, args, before, self.row(), now)
            except Violation as violation:
                self.break_off(violation)
            self.check_trust()

        return after

    def check(
        self, verb: str, args: tuple[Any, ...], before: dict[str, Any] | None, after: dict[str, Any] | None, now: int
    ) -> None:
        """What one statement may do to the lease's row."""
        if verb == "commit":
            self.check_writes()
        if after is None or after == before:
            return
        ended = before is None or before["holder"] is None or before["expires_at"] <= now
        grew = after["term"] - (before or {"term": 0})["term"]
        if grew not in (0, 1) or (grew and (verb != "acquire_lease" or not ended)):
            raise Violation("terms grow by one, at acquisitions of what is free", f"{verb}: {before} → {after}")
        if verb == "heartbeat_lease" and ended:
            raise Violation("an ended lease never revives", f"{before} → {after}")
        if verb in ("heartbeat_lease", "resign_lease") and not _is_of(args[0], before):
            raise Violation("only the holder renews or resigns", f"{verb} {args[0]}: {before} → {after}")
        if after["holder"] is not None:
            self.check_winner(after)

    def check_winner(self, row: dict[str, Any]) -> None:
        winner = f"{row['holder']} {row['acquisition']}"
        if self.winners.setdefault(row["term"], winner) != winner:
            raise Violation("one holder per term", f"term {row['term']}: {self.winners[row['term']]}, then {winner}")

    def check_writes(self) -> None:
        """Check what was just committed. A refused transaction has written nothing."""
        rows = self.database.query("select rowid, term from written order by rowid desc limit 1")
        current = (self.row() or {"term": 0})["term"]
        if not rows or rows[0]["rowid"] == self.counts["writes"]:
            return
        self.counts["writes"] = rows[0]["rowid"]
        if rows[0]["term"] != current:
            raise Violation("no write from an old term", f"{tuple(rows[0])} was committed in term {current}")

    def check_trust(self) -> None:
        """Without clock jumps and operators, at most one process trusts itself."""
        held = [(candidate.leader.term, candidate.name) for candidate in self.candidates if not candidate.crashed]
        terms = {term.number: name for term, name in held if term is not None}
        fair = [number for number in terms if number not in self.taken_away]
        if len(fair) > 1 and not self.faults["database clock"]:
            self.break_off(Violation("one trusts itself at a time", f"{terms}"))

    def renews(self, candidate: Candidate, grant: Grant) -> None:
        """A heartbeat is about to be sent."""
        if grant.term in candidate.announced:
            self.break_off(Violation("what was announced as lost is never renewed", f"{candidate.name}: {grant}"))


def _is_of(grant: Grant, row: dict[str, Any] | None) -> bool:
    return row is not None and row["term"] == grant.term.number and row["acquisition"] == str(grant.acquisition)
