"""Leaders that die, stop, freeze or are cut off: real processes, on PostgreSQL and SQLite."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from reltask import App
from tests.cluster.cluster import eventually, figures, pause
from tests.cluster.lease_candidates import LeaseCandidates, open_candidates
from tests.faults.proxy import Proxy
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

TTL = timedelta(seconds=2)
"""A new leader that is paused for a second before its first write or heartbeat is still the leader."""
TAKEOVER = TTL + timedelta(seconds=1)
"""After a leader was killed, the next term begins within this time."""


@pytest.fixture(params=["postgresql", "sqlite"])
def candidates(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaseCandidates]:
    """Three processes that try to lead; one of them does."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/leases.db" if sqlite else request.getfixturevalue("postgres_url")
    with open_candidates(url, tmp_path, 3, TTL) as found:
        yield found


def test_a_killed_leader_is_followed(candidates: LeaseCandidates) -> None:
    """Within TTL + 1 s, under the next term; rows of an old term never come after rows of a newer one."""
    for _ in range(2):
        lease = candidates.wait_for_leader()
        took = candidates.takeover_after(lease, signal.SIGKILL)
        figures.info("taken over %.3f s after SIGKILL", took.total_seconds())
        assert took <= TAKEOVER
        after = candidates.wait_for_leader(after=lease.term)
        assert (after.term, after.holder != lease.holder) == (lease.term + 1, True)
        candidates.wait_for_rows(after.term)


def test_a_leader_that_is_stopped_hands_over(candidates: LeaseCandidates) -> None:
    """SIGTERM leaves the block, which resigns: the next leader does not wait for the end of the lease."""
    lease = candidates.wait_for_leader()
    candidates.wait_for_rows(lease.term)
    leaving = candidates.leader(lease)
    took = candidates.takeover_after(lease, signal.SIGTERM)
    figures.info("handed over %.3f s after SIGTERM", took.total_seconds())
    assert candidates.wait_for_leader().term == lease.term + 1
    assert leaving.process.returncode == 0, leaving.output()


def test_a_paused_leader_s_late_write_is_refused(candidates: LeaseCandidates) -> None:
    """SIGSTOP past the TTL: another process leads, and the old leader's write on waking is refused."""
    lease = candidates.wait_for_leader()
    candidates.wait_for_rows(lease.term)
    paused = candidates.leader(lease)
    pause(candidates.url, paused)
    following = candidates.wait_for_leader(after=lease.term)
    candidates.gate(candidates.processes.index(paused)).touch()
    paused.signal(signal.SIGCONT)
    (late,) = eventually(lambda: paused.events("late"), what="the paused leader tries to write", seen=paused.output)
    assert (late["term"], late["accepted"], late["held"]) == (lease.term, False, False)
    assert following.term == lease.term + 1
    candidates.wait_for_rows(following.term)


def test_a_leader_in_a_black_hole_stops_trusting_itself(postgres_url: str, postgres_server: PostgresServer) -> None:
    """Nothing arrives, and no error is reported: it announces its loss before another can acquire the lease."""
    direct = App(postgres_url)
    with Proxy(postgres_server.port) as proxy:
        cut_off = App(proxy.url(postgres_url))
        with cut_off.lease_sync("reports", ttl="5s") as lease:  # a sixth of the TTL remains to query the database
            direct.leases_sync()  # connected beforehand
            proxy.black_hole()
            assert lease.lost.wait(10) == "it could not be renewed in time"
            (view,) = direct.leases_sync()
            figures.info("announced %.3f s before the end", (view.expires_at - view.now).total_seconds())
            assert (view.held, view.term) == (True, lease.term)
            assert not lease.held
            proxy.heal()
        cut_off.close()
    direct.close()
