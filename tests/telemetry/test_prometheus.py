"""Metrics: what a real Prometheus client reads of a worker and of a database; the files for Grafana and the alerts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reltask import App, events
from reltask.errors import TransientError, UsageError
from reltask.model.job import NewJob
from reltask.model.overview import Overview
from reltask.stores.store import Store
from reltask.telemetry.prometheus import DatabaseMetrics, WorkerMetrics, serve, write_overview
from tests.store.store_harness import worker_record

ROOT = Path(__file__).parents[2]
LABELS = {"task", "queue", "outcome", "kind", "state", "le"}
OF_PROCESS = re.compile(r"\b(reltask_\w+)")


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample by its name and its labels, as Prometheus reads it."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def sample(text: str, name: str, **labels: str) -> float | None:
    return parsed(text).get(name, {}).get(tuple(sorted(labels.items())))


async def test_a_worker_counts_its_runs(tmp_path: Path) -> None:
    """Outcomes, lengths, delays and steps of a real worker; nothing counts as running afterwards."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    counted = WorkerMetrics()
    app.subscribe(counted)

    @app.task(queue="mail")
    async def good() -> None: ...

    @app.task(max_attempts=1)
    async def bad() -> None:
        raise ValueError("secret 4711")

    @app.task
    async def durable(ctx: Any) -> None: ...

    await app.enqueue_many([good.call(), good.call(), bad.call()])
    async with app.worker() as worker:
        await worker.drained()
    text = generate_latest(counted.registry).decode()
    assert sample(text, "reltask_runs_total", task="good", queue="mail", outcome="succeeded") == 2
    assert sample(text, "reltask_runs_total", task="bad", queue="default", outcome="dead") == 1
    assert sample(text, "reltask_run_duration_seconds_count", task="good", queue="mail") == 2
    assert sample(text, "reltask_run_delay_seconds_count", task="bad", queue="default") == 1
    assert sample(text, "reltask_running", queue="mail") == 0
    assert "4711" not in text
    app.close()


def event(kind: type[events.Event], **fields: Any) -> events.Event:
    run = {"worker": "w", "task": "t", "job_id": uuid4(), "slot_no": 1, "fence": 1, "queue": "q"}
    given = run if issubclass(kind, events.RunEvent) else {"worker": "w"}
    return kind(**{**given, **fields})


def test_rare_events_are_counted() -> None:
    """Steps by kind, failed heartbeats, refused late writes; a slot without a body never ran."""
    counted = WorkerMetrics()
    counted(event(events.StepsRecorded, kinds=["step", "step", "sleep"]))
    counted(event(events.HeartbeatFailed, failures=1, limit=3, error="x"))
    started = event(events.RunStarted, attempt=1, late=0.2)
    counted(started)
    counted(event(events.LateWriteRefused, outcome="succeeded", job_id=started.job_id))  # type: ignore[attr-defined]
    counted(event(events.RunEnded, outcome="skipped", reason=""))
    text = generate_latest(counted.registry).decode()
    assert sample(text, "reltask_steps_total", task="t", kind="step") == 2
    assert sample(text, "reltask_heartbeat_failures_total") == 1
    assert sample(text, "reltask_late_writes_refused_total") == 1
    assert sample(text, "reltask_running", queue="q") == 0
    assert sample(text, "reltask_runs_total", task="t", queue="q", outcome="skipped") == 1


@pytest.fixture
async def overview(tmp_path: Path) -> Overview:
    """A system with due, unserved, dead and recurring jobs."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    async def fill(store: Store) -> Overview:
        await store.register_worker(worker_record("alice", queues=["mail"], tasks=["a"]))
        jobs = [NewJob(id=uuid4(), task="a", queue="mail", delay=timedelta(days=1)), NewJob(id=uuid4(), task="b")]
        await store.enqueue_jobs(
            [*jobs, NewJob(id=uuid4(), task="b"), NewJob(id=uuid4(), task="r", schedule='{"every":"1m"}')]
        )
        return await store.read_overview()

    found = await app._client.run(fill, name="fill")
    app.close()
    return found


async def test_the_database_is_read_by_one(overview: Overview) -> None:
    """Gauges by queue, task and state."""
    text = write_overview(overview).decode()
    assert sample(text, "reltask_jobs", queue="mail", state="later") == 1
    assert sample(text, "reltask_jobs", queue="default", state="due") == 3
    assert sample(text, "reltask_unserved_jobs", task="b") == 2
    assert sample(text, "reltask_workers", state="alive") == 1
    oldest = sample(text, "reltask_oldest_due_seconds", queue="default")
    assert oldest is not None
    assert oldest >= 0
    assert sample(text, "reltask_up") == 1


async def test_labels_are_few_and_known(overview: Overview) -> None:
    """Never a job, a key, a worker, an error or the name of a step."""
    counted = WorkerMetrics()
    counted(event(events.RunStarted, attempt=1, late=0.2))
    counted(event(events.RunFailed, attempt=1, error="E", retry_in=1, dead=False, recurring=False))
    counted(event(events.StepsRecorded, kinds=["step"]))
    text = generate_latest(counted.registry).decode() + write_overview(overview).decode()
    used = {name for samples in parsed(text).values() for labels in samples for name, _ in labels}
    assert used <= LABELS


async def test_scrapes_share_one_read(overview: Overview) -> None:
    """A read serves all scrapes of a few seconds; while the database is away, `reltask_up` says so."""
    reads, now = [], [0.0]

    def read() -> Overview:
        reads.append(now[0])
        if now[0] > 100:
            raise TransientError("gone")
        return overview

    registry = CollectorRegistry()
    registry.register(DatabaseMetrics(read, clock=lambda: now[0]))
    for moment in (0.0, 1.0, 4.9, 5.0, 200.0):
        now[0] = moment
        text = generate_latest(registry).decode()
    assert reads == [0.0, 5.0, 200.0]
    assert sample(text, "reltask_up") == 0


def test_a_scrape_over_http() -> None:
    """The worker's port answers in the format that Prometheus asks for; a wrong address is refused with a remedy."""
    counted = WorkerMetrics()
    counted(event(events.HeartbeatFailed, failures=1, limit=3, error="x"))
    address, close = serve(counted.registry, "127.0.0.1:0")
    try:
        with urllib.request.urlopen(address) as answer:
            assert sample(answer.read().decode(), "reltask_heartbeat_failures_total") == 1
    finally:
        close()
    for wrong in ("9090", "127.0.0.1:port"):
        with pytest.raises(UsageError, match=re.escape("127.0.0.1:9090")):
            serve(counted.registry, wrong)


# The files


def exported(overview: Overview) -> set[str]:
    """The names of all samples and families."""
    counted = WorkerMetrics()
    for one in (
        event(events.RunStarted, attempt=1, late=0.2),
        event(events.RunSucceeded, seconds=1, next_run_time=None),
        event(events.StepsRecorded, kinds=["step"]),
    ):
        counted(one)
    text = generate_latest(counted.registry).decode() + write_overview(overview).decode()
    return {
        name
        for family in text_string_to_metric_families(text)
        for name in [family.name, *(s.name for s in family.samples)]
    }


def grafana_queries() -> list[str]:
    """Those of all panels."""
    board = json.loads((ROOT / "monitoring/grafana.json").read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


async def test_grafana_and_alerts_use_metrics_that_exist(overview: Overview) -> None:
    """Each query names what is exported; each alert has a runbook in the documentation."""
    names = exported(overview)
    queries = grafana_queries()
    rules = (ROOT / "monitoring/alerts.yml").read_text(encoding="utf-8")
    queries += re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)
    used = {name for query in queries for name in OF_PROCESS.findall(query)}
    assert used - names == set()
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    headings = {re.sub(r"[^a-z]", "", line.lower()) for line in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    runbooks = re.findall(r"runbook_url: docs/monitoring\.md#(\w+)", rules)
    assert len(runbooks) == len(re.findall(r"- alert:", rules)) == 6
    assert set(runbooks) <= headings


def promtool(folder: Path) -> str | None:
    """Prometheus's own checker: installed, or unpacked from Debian's package, which needs no rights."""
    if found := shutil.which("promtool"):
        return found
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=folder, capture_output=True, check=False)
        for package in folder.glob("prometheus_*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    unpacked = folder / "usr/bin/promtool"
    return str(unpacked) if unpacked.exists() else None


@pytest.mark.slow
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """Prometheus itself reads the rules and Grafana's queries, and fires each rule for the series that call for it."""
    program = promtool(tmp_path)
    if program is None:
        pytest.skip("NOT RUN: there is no promtool, and Debian's package prometheus could not be downloaded.")
    queries = [{"record": f"query:{nth}", "expr": query} for nth, query in enumerate(grafana_queries())]
    (tmp_path / "grafana.yml").write_text(json.dumps({"groups": [{"name": "grafana", "rules": queries}]}))
    check = ["check", "rules", "alerts.yml", str(tmp_path / "grafana.yml")]
    for arguments in (check, ["test", "rules", "alerts.test.yml"]):
        ended = subprocess.run(
            [program, *arguments], cwd=ROOT / "monitoring", capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


async def test_a_task_without_dead_letters_counts_none(overview: Overview) -> None:
    """Growth is the difference to an earlier sample: the first dead letter needs a 0 before it."""
    assert sample(write_overview(overview).decode(), "reltask_dead_jobs", task="a") == 0


def test_the_page_lists_every_metric() -> None:
    """docs/monitoring.md names what is exported."""
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    source = (ROOT / "src/reltask/telemetry/prometheus.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(reltask_\w+)"', source))
    assert {name for name in names if f"`{name}" not in page} == set()
