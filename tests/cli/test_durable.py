"""What the command line shows of durable functions, and what it can do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from reltask.model.durable import Recording, StepKind, StepRecord, StepState
from reltask.model.job import Claim, ClaimRequest, NewJob, Parent, Suspension
from reltask.stores.sqlite.store import SqliteStore
from tests.cli.project import Project

START = datetime(2999, 1, 1, 12, tzinfo=UTC)


def on_file(project: Project, work: Callable[[SqliteStore], Awaitable[None]]) -> None:
    """Do what a worker would, on the project's file, at a fixed time."""

    async def opened() -> None:
        store = SqliteStore(str(project.folder / "jobs.db"), now=lambda: START + timedelta(seconds=2))
        await store.open()
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(opened())


async def claimed(store: SqliteStore, task: str = "hello") -> Claim:
    request = ClaimRequest(
        worker="host-a:7:cafe", token=uuid4(), queues=["default"], tasks=[task], limit=1,
        lock_timeout=timedelta(minutes=2), isolated=True, alive_for=timedelta(minutes=1),
    )  # fmt: skip
    (claim,) = (await store.claim_jobs(request)).claims
    return claim


def step(name: str, **fields: object) -> StepRecord:
    given = {"kind": StepKind.STEP, "state": StepState.DONE, "started_at": START, **fields}
    return StepRecord(name=name, **given)  # type: ignore[arg-type]


@pytest.fixture
def suspended(project: Project) -> tuple[Project, str]:
    """A function with two steps that waits for a signal, a time and a child."""
    job = UUID(int=7)

    async def work(store: SqliteStore) -> None:
        await store.enqueue_jobs([NewJob(id=job, task="hello", args='{"name": "hush"}', run_at=START)])
        claim = await claimed(store)
        wait = {"kind": StepKind.WAIT, "state": StepState.WAITING, "signal": "decision"}
        steps = (
            step("charge", value='"hush"', attempt=2),
            step("book", state=StepState.FAILED, error="OSError: no paper", started_at=START + timedelta(seconds=1)),
            step("approve", **wait, wake_at=START + timedelta(days=7), started_at=START + timedelta(seconds=1.5)),
        )
        await store.record_steps(claim_worker, [Recording(hold=claim.hold, steps=steps)])
        parent = Parent(job_id=job, slot_no=1, step="labels", nth=0)
        await store.enqueue_jobs([NewJob(id=UUID(int=8), task="label", run_at=START, parent=parent)])
        await store.suspend_jobs(claim_worker, [Suspension(hold=claim.hold, seen=0, wake_at=START + timedelta(days=7))])

    claim_worker = "host-a:7:cafe"
    on_file(project, work)
    return project, str(job)


def show(project: Project, job: str, *more: str) -> list[str]:
    result = project.run("jobs", "show", job, "--app", project.app, *more)
    assert result.code == 0, result.err
    return [" ".join(line.split()) for line in result.out.splitlines()]


def test_the_steps_are_a_timeline(suspended: tuple[Project, str]) -> None:
    """Name, kind, state, attempt, start, seconds, wake time, run, worker and error; never a value."""
    lines = show(*suspended)
    assert "state suspended" in lines
    begin = lines.index("STEP KIND STATE ATTEMPT STARTED SECONDS WAKES RUN WORKER ERROR")
    charge, book, approve = lines[begin + 1 : begin + 4]
    worker = charge.split()[-2]
    assert worker.startswith("host-a")
    assert charge == f"charge step done 2 2999-01-01 12:00:00 2.000 - 1 {worker} -"
    assert book == f"book step failed 1 2999-01-01 12:00:01 1.000 - 1 {worker} OSError: no paper"
    assert approve == f"approve wait waiting 1 2999-01-01 12:00:01 - 2999-01-08 12:00:00 1 {worker} -"
    assert "hush" not in "".join(lines)


def test_children_and_waiting_signals_are_shown(suspended: tuple[Project, str]) -> None:
    """A child with its state; a signal by its name and id, without its value."""
    project, job = suspended
    sent = project.run("jobs", "signal", job, "decision", '{"by": "hush"}', "--id", "click-1", "--app", project.app)
    assert (sent.code, sent.out) == (0, f"{job} was sent the signal decision\n")
    lines = show(project, job)
    assert f"labels 0 {UUID(int=8)} label ready" in lines
    assert any(line.startswith("decision click-1 ") for line in lines)
    assert "hush" not in "".join(lines)


def test_show_has_all_of_it_as_json(suspended: tuple[Project, str]) -> None:
    """For scripts: steps with their worker, children, signals and runs; no value here either."""
    project, job = suspended
    project.run("jobs", "signal", job, "decision", '"hush"', "--app", project.app)
    result = project.run("jobs", "show", job, "--app", project.app, "--json")
    shown = result.json
    assert [(step["name"], step["state"], step["worker"]) for step in shown["steps"]] == [
        ("charge", "done", "host-a:7:cafe"),
        ("book", "failed", "host-a:7:cafe"),
        ("approve", "waiting", "host-a:7:cafe"),
    ]
    assert [child["state"] for child in shown["children"]] == ["ready"]
    assert [(signal["name"], signal["consumed_by"]) for signal in shown["signals"]] == [("decision", None)]
    assert [run["outcome"] for run in shown["runs"]] == ["suspended"]
    assert "hush" not in result.out


def test_a_plain_job_shows_no_empty_tables(project: Project) -> None:
    """Steps, children and signals are there for jobs that have some."""
    lines = show(project, project.enqueue("hello", name="Ada"))
    assert not any(line.startswith(("STEP", "CHILD", "SIGNAL")) for line in lines)


def test_suspended_jobs_are_counted_and_listed(suspended: tuple[Project, str]) -> None:
    """They are a state of their own: not ready, not due."""
    project, job = suspended
    lines = [" ".join(line.split()) for line in project.run("status", project.app).out.splitlines()]
    assert "suspended 1" in lines
    (listed,) = project.run("jobs", "list", project.app, "--state", "suspended", "--json").json
    assert listed["id"] == job


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ([str(UUID(int=9)), "decision", "true"], 1, "error[job-ended]"),
        (["JOB", "decision", "{hush"], 1, "error[arguments]: The value is not JSON"),
        (["JOB", "", "true"], 2, "must have 1 to 200 characters"),
        (["JOB", "decision", "true", "--id", ""], 2, "must have 1 to 200 characters"),
        (["JOB", "decision"], 2, "Missing argument 'JSON'"),
    ],
)
def test_a_signal_that_cannot_be_sent_says_why(
    arguments: list[str], code: int, error: str, suspended: tuple[Project, str]
) -> None:
    """Nothing is stored, and no value is quoted."""
    project, job = suspended
    arguments = [job if one == "JOB" else one for one in arguments]
    result = project.run("jobs", "signal", *arguments, "--app", project.app)
    assert (result.code, error in result.err, "hush" in result.err) == (code, True, False), result.err
    assert project.run("jobs", "show", job, "--app", project.app, "--json").json["signals"] == []


def test_a_step_is_forgotten_after_a_yes(suspended: tuple[Project, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks before it destroys, and names what will run again; a no changes nothing."""
    project, job = suspended
    answers = iter([False, True])
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        if next(answers):
            return True
        raise KeyboardInterrupt

    monkeypatch.setattr("click.confirm", confirm)
    forget = ("steps", "forget", job, "book", "--and-after", "--app", project.app)
    refused = project.run(*forget)
    assert (refused.code, len(asked)) == (130, 1)
    assert "book, approve" in refused.err
    assert len(project.run("jobs", "show", job, "--app", project.app, "--json").json["steps"]) == 3
    done = project.run(*forget)
    assert (done.code, done.out) == (0, f"{job} has forgotten 2 steps\n")
    left = project.run("jobs", "show", job, "--app", project.app, "--json").json
    assert ([step["name"] for step in left["steps"]], left["state"]) == (["charge"], "suspended")


def test_forgetting_can_be_scripted(suspended: tuple[Project, str]) -> None:
    """With --yes nothing is asked; an unknown step is an error, with or without it."""
    project, job = suspended
    done = project.run("steps", "forget", job, "charge", "--yes", "--app", project.app, "--json")
    assert done.json == {"id": job, "forgotten": 1}
    for more in (["--yes"], []):
        unknown = project.run("steps", "forget", job, "charge", *more, "--app", project.app)
        assert unknown.code == 2
        assert "No step 'charge' was removed" in unknown.err


def test_the_result_of_a_job_is_json(project: Project) -> None:
    """It waits for the end; a dead letter, a wait that is too long and a job that is gone are errors."""
    job, fragile = project.enqueue("hello", name="Ada"), project.enqueue("fragile", secret="hush")
    late = project.run("jobs", "result", job, "--timeout", "10ms", "--app", project.app)
    assert (late.code, late.err) == (1, f"Job {job} has not ended within 10ms.\n")
    assert project.call("worker", project.app, "--once").code == 0
    assert project.run("jobs", "result", job, "--app", project.app).out == '"hello Ada"\n'
    dead = project.run("jobs", "result", fragile, "--app", project.app)
    assert (dead.code, "error[job-failed]" in dead.err, "ValueError: it broke" in dead.err) == (1, True, True)
    gone = project.run("jobs", "result", str(UUID(int=9)), "--app", project.app)
    assert (gone.code, "error[result-gone]" in gone.err) == (1, True)


def test_a_step_of_an_ended_slot_no_longer_waits(suspended: tuple[Project, str]) -> None:
    """Its record says so for ever: a cancelled wait, or a last sleep that no further step has recorded as done."""
    project, job = suspended
    assert project.run("jobs", "cancel", job, "--yes", "--app", project.app).code == 0
    lines = show(project, job)
    assert next(line for line in lines if line.startswith("approve wait")).split()[2] == "over"
    assert not any("2999-01-08" in line for line in lines)
