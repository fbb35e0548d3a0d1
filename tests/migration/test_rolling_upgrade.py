"""A rolling deploy over a migration, and back: real workers of two versions on one database.

The old version is this tree. The new one is the same code with one more migration, which exists
only here: an additive one, or one that older code must not run on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import PATIENCE, ROOT, Cluster, WorkerProcess, running

pytestmark = pytest.mark.slow

COLUMNS = {
    "postgres": """
alter table reltask.jobs add column if not exists tenant text;
alter table reltask.runs add column if not exists tenant text not null default 'eu';
alter table reltask.workers add column if not exists tenant text;
create index if not exists jobs_tenant on reltask.jobs (tenant);
create table if not exists reltask.tenants (name text primary key);
""",
    "sqlite": """
alter table reltask_jobs add column tenant text;
alter table reltask_runs add column tenant text not null default 'eu';
alter table reltask_workers add column tenant text;
create index if not exists reltask_jobs_tenant on reltask_jobs (tenant);
create table if not exists reltask_tenants (name text primary key);
""",
}
META = {
    "postgres": "update reltask.meta set schema_version = 7, oldest_version = {oldest} where schema_version < 7;",
    "sqlite": "update reltask_meta set schema_version = 7, oldest_version = {oldest} where schema_version < 7;",
}
OLD = ROOT / "database"
REFUSED = 78
"""The exit status for settings or schema."""


@pytest.fixture(params=["sqlite", "postgres"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """One place per worker, so that two jobs need two workers."""
    sqlite = f"sqlite:///{tmp_path / 'cluster.db'}"
    url = sqlite if dialect == "sqlite" else request.getfixturevalue("postgres_url")
    with running(url, tmp_path, concurrency="1", lock_timeout="1m") as made:
        yield made


def newer(directory: Path, dialect: str, *, oldest: int) -> Path:
    """The scripts of the new version: ours, and one more."""
    folder = directory / "database"
    shutil.copytree(OLD, folder)
    script = COLUMNS[dialect] + META[dialect].format(oldest=oldest)
    (folder / dialect / "007-alter-tenants.sql").write_text(script)
    return folder


def start(cluster: Cluster, scripts: Path, *, wait: bool = True) -> WorkerProcess:
    command = ("tests.migration.version", str(scripts), "worker", "tests.cluster.workload:app")
    return cluster.start(command=command, wait=wait)[0]


def reltask(cluster: Cluster, scripts: Path, *arguments: str) -> tuple[int, str]:
    """Run a command of that version; return its exit status and what it printed."""
    command = ("tests.migration.version", str(scripts), *arguments)
    (process,) = cluster.start(command=command, wait=False)
    return process.exit_code(), process.output()


def restart(cluster: Cluster, worker: WorkerProcess, scripts: Path) -> WorkerProcess:
    worker.process.terminate()
    assert worker.exit_code() == 0
    return start(cluster, scripts)


def check_that_both_run_jobs(cluster: Cluster, *workers: WorkerProcess) -> None:
    """As many bodies as workers, all at the same time: each worker has one."""
    gate = cluster.gate(f"gate-{len(cluster.enqueued)}")
    jobs = [cluster.enqueue("hold", gate=str(gate)) for _ in workers]
    holders = {cluster.begun(job).pid for job in jobs}
    assert holders == {worker.pid for worker in workers}
    gate.touch()
    assert [len(cluster.finished(job)) for job in jobs] == [1] * len(workers)


def test_rolling_deploy_over_an_additive_migration_and_back(cluster: Cluster, dialect: str, tmp_path: Path) -> None:
    """Old workers go on through the migration, start again after it, and run beside new ones; so after a rollback."""
    new = newer(tmp_path, dialect, oldest=6)
    old_worker = start(cluster, OLD)
    check_that_both_run_jobs(cluster, old_worker)
    during = cluster.enqueue("hold", gate=str(cluster.gate("during")))
    cluster.begun(during)
    assert reltask(cluster, new, "migrate")[0] == 0
    cluster.gate("during").touch()
    assert [run.outcome for run in cluster.finished(during)] == ["succeeded"]

    new_worker = start(cluster, new)
    check_that_both_run_jobs(cluster, old_worker, new_worker)
    old_worker = restart(cluster, old_worker, OLD)
    check_that_both_run_jobs(cluster, old_worker, new_worker)

    back = restart(cluster, new_worker, OLD)  # the rollback: no new worker is left
    check_that_both_run_jobs(cluster, old_worker, back)
    code, said = reltask(cluster, OLD, "migrate")
    assert (code, "up to date" in said) == (0, True)
    forward = restart(cluster, back, new)
    check_that_both_run_jobs(cluster, old_worker, forward)
    assert reltask(cluster, new, "migrate", "--check")[0] == 0  # the old version's migrate changed nothing
    cluster.stop()
    assert cluster.report().faults == {}


def test_a_breaking_migration_is_refused_to_old_workers(cluster: Cluster, dialect: str, tmp_path: Path) -> None:
    """An old worker that starts after it exits with the reason; so does its migrate. A new one runs."""
    new = newer(tmp_path, dialect, oldest=7)
    cluster.jobs()  # opens a file of the old version
    assert reltask(cluster, new, "migrate")[0] == 0
    refused = start(cluster, OLD, wait=False)
    assert refused.exit_code(within=PATIENCE) == REFUSED
    assert "schema version 7, which only code of version 7 or newer may use" in refused.output()
    assert "Upgrade reltask here" in refused.output()
    code, said = reltask(cluster, OLD, "migrate")
    assert (code, "Upgrade reltask here" in said) == (REFUSED, True)
    check_that_both_run_jobs(cluster, start(cluster, new))


def test_a_new_worker_needs_the_migration_first(postgres_url: str, tmp_path: Path) -> None:
    """On PostgreSQL, code that is newer than the schema says what to run, and old workers go on."""
    new = newer(tmp_path, "postgres", oldest=6)
    with running(postgres_url, tmp_path, concurrency="1") as cluster:
        old_worker = start(cluster, OLD)
        refused = start(cluster, new, wait=False)
        assert refused.exit_code() == REFUSED
        assert "Run: reltask migrate" in refused.output()
        check_that_both_run_jobs(cluster, old_worker)
