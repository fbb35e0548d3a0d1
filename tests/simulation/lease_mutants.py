"""Leases, deliberately broken: the histories of `leases.py` must catch each of these.

`python -m tests.simulation.lease_mutants` prints which invariant caught each one, and how many seeds it took.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any
from unittest import mock

from reltask.leases.candidacy import Candidacy, LeaseAction, ResignLease, Tenure, TryLease
from reltask.model.lease import LeaseAnswer
from tests.simulation.broken import Mutant, method, sql
from tests.simulation.mutants import Catch, table
from tests.simulation.run_leases import run_seeds

CHUNK = 5
"""Seeds that share one database."""
Candidacy_answered = Candidacy.answered
Candidacy_lose = Candidacy._lose


def trust_from_the_answer(
    self: Candidacy, tried: TryLease, answer: LeaseAnswer, *, sent_at: float, now: float
) -> list[LeaseAction]:
    assert sent_at <= now
    return Candidacy_answered(self, tried, answer, sent_at=now, now=now)


def renew_what_was_announced(self: Candidacy, tenure: Tenure, reason: str, now: float) -> list[LeaseAction]:
    actions = Candidacy_lose(self, tenure, reason, now)
    if now < tenure.pace.deadline(tenure.acknowledged) and not tenure.gone:
        tenure.lost, tenure.rotate_at, tenure.progressed, self.tenure = None, float("inf"), now, tenure
        return [action for action in actions if not isinstance(action, ResignLease)]
    return actions


def never(_tenure: Tenure) -> float:
    return float("inf")


def lease_sql(verb: str, *changes: tuple[str, str]) -> Any:
    return lambda: sql(verb, *changes)


MUTANTS = [
    Mutant("guard without the term", lease_sql("guard_lease", (" and term = :term", ""))),
    Mutant(
        "beat by name alone", lease_sql("heartbeat_lease", (" and term = :term and acquisition = :acquisition", ""))
    ),
    Mutant("beat revives what has ended", lease_sql("heartbeat_lease", ("\n  and expires_at > :now", ""))),
    Mutant("resign by name alone", lease_sql("resign_lease", (" and term = :term and acquisition = :acquisition", ""))),
    Mutant(
        "acquire what is held",
        lease_sql(
            "acquire_lease",
            ("or leases.expires_at <= :now or", "or 1 or"),
            ("or lease.expires_at <= :now or", "or 1 or"),
        ),
    ),
    Mutant(
        "the term does not grow",
        lease_sql(
            "acquire_lease",
            ("lease.term + (lease.acquisition is not :acquisition or lease.expires_at <= :now)", "lease.term"),
        ),
    ),
    Mutant(
        "the same acquisition gets another term",
        lease_sql("acquire_lease", ("lease.acquisition is not :acquisition", "1")),
    ),
    Mutant("trust from the answer, not from the send", method(Candidacy, "answered", trust_from_the_answer)),
    Mutant("trust for ever", lambda: mock.patch.object(Tenure, "stop_at", property(never))),
    Mutant("renew what was announced as lost", method(Candidacy, "_lose", renew_what_was_announced)),
]


def hunt(mutant: Mutant, limit: int) -> Catch:
    """Run seeds against one mutant until one breaks an invariant."""
    for first in range(0, limit, CHUNK):
        with mutant.broken():
            verdicts = run_seeds(list(range(first, first + CHUNK)))
        for verdict in verdicts:
            if verdict.broken is not None:
                return Catch(mutant.name, verdict.broken, verdict.seed + 1)
    return Catch(mutant.name, None, limit)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=1_000)
    options = parser.parse_args()
    catches = [hunt(mutant, options.limit) for mutant in MUTANTS]
    print(table(catches))  # noqa: T201 - this is what the command is for
    return 1 if any(catch.invariant is None for catch in catches) else 0


if __name__ == "__main__":
    sys.exit(main())
