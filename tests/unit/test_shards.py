"""Where jobs live, and how verbs reach the shards."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reltask import App
from reltask.errors import ConfigurationError, TransientError, UsageError
from reltask.model.job import NewJob, Outcome, Parent
from reltask.model.merged import merge
from reltask.model.shards import AWAY, MOST, Here, Placement, numbered, rendezvous, shard_of
from reltask.model.views import JobEnd, MetricView
from reltask.stores.shard_routes import OF_A_WORKER, ROUTES, ends_of_unknown
from reltask.stores.shards import ShardedStore
from reltask.stores.store import Store
from reltask.worker.shards import ShardedWorker
from reltask.worker.worker import Worker
from tests.store.store_harness import START

SOURCE = Path(__file__).parents[2] / "src" / "reltask"


def placement(count: int = 4) -> Placement:
    return Placement(range(count), random.Random(1))


def job(**fields: object) -> NewJob:
    return NewJob(**{"id": uuid4(), "task": "greet", **fields})  # type: ignore[arg-type] # fields of a job


@given(st.uuids(version=4), st.integers(0, MOST - 1))
def test_an_id_carries_its_shard(job_id: UUID, shard: int) -> None:
    """And nothing else of it changes but the version and twelve bits."""
    made = numbered(job_id, shard)
    assert shard_of(made) == shard
    assert shard_of(job_id) is None
    assert made.int >> 80 == job_id.int >> 80
    assert made.int & (1 << 64) - 1 == job_id.int & (1 << 64) - 1


def test_ids_of_one_shard_stay_in_order() -> None:
    """Of two jobs with one key in a batch the first wins, with shards as without."""
    app = App("sqlite:///nowhere.db", shards=3)
    ids = app._enqueuer.new_ids(200, shard=2)
    assert ids == sorted(ids)
    assert len(set(ids)) == 200


@given(st.text(min_size=1), st.integers(1, 12))
def test_a_new_shard_takes_keys_and_moves_none_between_the_others(key: str, count: int) -> None:
    before, after = rendezvous(key, range(count)), rendezvous(key, range(count + 1))
    assert after in (before, count)


def test_keys_spread_evenly() -> None:
    found = Counter(rendezvous(f"customer-{n}", range(8)) for n in range(8_000))
    assert min(found.values()) > 850
    assert max(found.values()) < 1_150


def test_keys_do_not_depend_on_the_process() -> None:
    """The numbers are part of the contract: another process, or a later version, must find the same shard."""
    assert [rendezvous(f"order-{n}", range(8)) for n in range(8)] == PINNED


PINNED = [4, 4, 5, 3, 3, 1, 0, 3]


def test_where_jobs_live() -> None:
    """Children with parents, schedules on the first, keys by hash, the rest anywhere."""
    places = placement()
    parent = Parent(job_id=numbered(uuid4(), 3), slot_no=1, step="s", nth=0)
    child, schedule, keyed = job(parent=parent, key="a"), job(schedule='{"every":"1m"}', key="b"), job(key="c")
    assert places.place([child, schedule, keyed], 0.0) == [3, 0, rendezvous("c", range(4))]
    assert {places.place([job()], 0.0)[0] for _ in range(100)} == {0, 1, 2, 3}


def test_a_shard_that_did_not_answer_is_avoided_for_a_while() -> None:
    """Only by jobs that may live elsewhere; if none answers, any is tried."""
    places = placement(2)
    places.did_not_answer(1, 100.0)
    assert {places.anywhere(100.0 + AWAY / 2) for _ in range(50)} == {0}
    assert {places.anywhere(100.0 + AWAY) for _ in range(50)} == {0, 1}
    places.did_not_answer(0, 100.0)
    assert {places.anywhere(101.0) for _ in range(50)} == {0, 1}
    places.answered(1)
    assert {places.anywhere(101.0) for _ in range(50)} == {1}


def test_a_drained_shard_gets_nothing_and_its_keys_are_looked_for() -> None:
    places = placement(3)
    key = next(f"k{n}" for n in range(100) if rendezvous(f"k{n}", range(3)) == 1)
    places.draining = frozenset({1})
    assert places.of_key(key) != 1
    assert 1 in places.before(key)
    assert {places.anywhere(0.0) for _ in range(50)} == {0, 2}


def test_a_key_of_the_newest_shard_is_looked_for_where_it_was() -> None:
    places = placement(4)
    key = next(f"k{n}" for n in range(100) if rendezvous(f"k{n}", range(4)) == 3)
    other = next(f"k{n}" for n in range(100) if rendezvous(f"k{n}", range(4)) == 1)
    assert places.before(key) == [rendezvous(key, range(3))]
    assert places.before(other) == []


def test_a_transaction_refuses_what_lives_elsewhere() -> None:
    here = Here(0, placement())
    key = next(f"k{n}" for n in range(100) if rendezvous(f"k{n}", range(4)) == 2)
    assert here.place([job(), job()]) == [0, 0]
    with pytest.raises(UsageError, match="belongs to shard 2"):
        here.place([job(key=key)])
    with pytest.raises(UsageError, match="another shard"):
        here.refuse_elsewhere([numbered(uuid4(), 1)])
    here.refuse_elsewhere([numbered(uuid4(), 0), uuid4(), None])


@pytest.mark.parametrize(
    ("url", "shards"),
    [
        (None, []),
        (None, [None]),
        (None, ["sqlite:///a.db", "sqlite:///a.db"]),
        ("sqlite:///a.db", ["sqlite:///b.db"]),
        ("sqlite:///a.db", 0),
        ("sqlite:///a.db", MOST + 1),
        (None, "sqlite:///a.db"),
    ],
)
def test_what_is_no_list_of_shards_is_refused(url: str | None, shards: object) -> None:
    """When the app is made."""
    with pytest.raises(ConfigurationError):
        App(url, shards=shards)  # type: ignore[arg-type] # on purpose


def test_a_removed_shard_leaves_its_number() -> None:
    app = App(shards=["sqlite:///a.db", None, "sqlite:///c.db"])
    assert app.shard_urls == {0: "sqlite:///a.db", 2: "sqlite:///c.db"}


def test_a_job_without_a_shards_number_is_gone_only_if_every_shard_says_so() -> None:
    """While a shard is away, what the others know counts; what they do not know is an error."""
    here, there = uuid4(), uuid4()
    gone = JobEnd(job_id=here, recurring=False, dead=False, outcome=None, result=None, error=None)
    ended = replace(gone, outcome=Outcome.SUCCEEDED)
    away = TransientError("It is away.")
    assert ends_of_unknown([here], [[gone], [ended], [gone]]) == [ended]
    assert ends_of_unknown([here], [[ended], away]) == [ended]
    assert ends_of_unknown([here, there], [[], [gone], away]) == []
    assert ends_of_unknown([here], [[gone], [gone]]) == [gone]
    with pytest.raises(TransientError):
        ends_of_unknown([here], [[gone], away])


def test_every_verb_has_a_way() -> None:
    """A verb that is added to the store interface needs a route, or is for one shard's own store."""
    verbs = {name for base in Store.__mro__ for name in vars(base) if not name.startswith("_")}
    routed = ROUTES.keys() | {name for name in dir(ShardedStore) if not name.startswith("_")}
    assert verbs - routed == OF_A_WORKER
    assert ROUTES.keys() <= verbs


def test_what_producers_and_operators_send_has_a_way() -> None:
    """Only workers and stores send verbs about one shard."""
    rooms = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ("stores", "worker")]
    sent = {verb for path in rooms for verb in re.findall(r"\bstore\.(\w+)\(", path.read_text(encoding="utf-8"))}
    assert {"read_job", "signal_ended"} < sent
    assert not sent & OF_A_WORKER


def test_a_worker_of_shards_has_the_methods_of_a_worker() -> None:
    """`app.worker()` yields either: a caller need not know which."""
    own = {"is_drained", "retire"}
    assert {name for name in vars(Worker) if not name.startswith("_")} - own <= set(vars(ShardedWorker))


def test_rows_about_the_same_thing_become_one() -> None:
    row = MetricView(
        minute=START, task="a", succeeded=1, failed=2, seconds=1.5, seconds_most=1.0, late=0.5, late_most=0.25
    )
    (found,) = merge([row, row])
    assert (found.succeeded, found.failed, found.seconds, found.seconds_most) == (2, 4, 3.0, 1.0)
