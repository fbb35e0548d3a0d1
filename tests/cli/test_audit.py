"""`reltask audit` on real files: it reports violations only, and changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from uuid import UUID

import pytest

from reltask.cli.audit import _show_progress
from reltask.model.audit import AuditProgress
from tests.cli.project import Project


@pytest.fixture
def worked(project: Project) -> Project:
    """A one-off and a recurring job have succeeded once each; a third is a dead letter."""
    project.enqueue("hello", name="Ada")
    project.enqueue("fragile", secret="hush")
    assert project.call("worker", project.app, "--once").code == 0
    return project


def damage(sql: str) -> None:
    with closing(sqlite3.connect("jobs.db")) as connection, connection:
        connection.execute(sql)


def test_a_sound_database_has_no_violations(worked: Project) -> None:
    """A line per task, a closing line, and exit status 0."""
    result = worked.run("audit", worked.app)
    assert result.code == 0
    header, *rows = result.out.splitlines()
    lost = header.index("LOST")
    assert [(row.split()[0], row[lost:].split()[0]) for row in rows[:3]] == [
        ("fragile", "0"),
        ("hello", "0"),
        ("tick", "0"),
    ]
    assert rows[-1] == "3 jobs, 2 slots: 0 violations"


def test_a_violation_has_an_exit_status(worked: Project) -> None:
    """1, the job, the finding's name, and where to read on."""
    damage("update reltask_jobs set slot_no = 4 where task = 'tick'")
    result = worked.run("audit", worked.app)
    assert result.code == 1
    assert "(task tick)" in result.out
    assert "  violation[slot-lost] slots 2 to 3 neither ended in the ledger nor current" in result.out
    assert result.out.endswith("3 jobs, 2 slots: 1 violation; see docs/audit.md\n")
    assert worked.run("audit", worked.app, "--task", "hello").code == 0


def test_durable_functions_are_audited(worked: Project) -> None:
    """A suspended job that nothing will wake is a violation; the finding names step and slot."""
    damage("update reltask_jobs set suspended = 1, not_before = 8e15 where task = 'tick'")
    damage(
        "insert into reltask_steps (job_id, slot_no, name, kind, state, fingerprint, attempt, fence, started_at,"
        " recorded_at, pending) select id, slot_no + 1, 'charge', 'step', 'done', '', 1, 1, 0, 0, 0 from reltask_jobs"
        " where task = 'tick'"
    )
    result = worked.run("audit", worked.app)
    assert result.code == 1
    assert "  violation[never-wakes] suspended in slot 2, and nothing is left that would wake it" in result.out
    assert "  violation[step-stray] step 'charge' recorded after the end of slot 3, or slot 3 never" in result.out
    found = worked.run("audit", worked.app, "--json").json["breaks"]
    assert [(one["kind"], one["name"]) for one in found] == [("never-wakes", None), ("step-stray", "charge")]


def test_the_audit_has_json(worked: Project) -> None:
    """The same as JSON, with the same exit status."""
    sound = worked.run("audit", "--database", "sqlite:///jobs.db", "--json").json
    assert (sound["violations"], sound["breaks"], sound["waits"]) == (0, [], [])
    assert [task["task"] for task in sound["tasks"]] == ["fragile", "hello", "tick"]
    damage("delete from reltask_runs where task = 'tick'")
    result = worked.run("audit", worked.app, "--json")
    assert result.code == 1
    assert {found["kind"] for found in result.json["breaks"]} == {"slot-lost", "run-missing"}


def test_an_idle_worker_is_a_violation_and_a_missing_one_a_note(project: Project) -> None:
    """A job that no worker can run is not lost; one that an idle worker leaves is."""
    project.enqueue("hello", name="Ada")
    damage("update reltask_jobs set created_at = 0, next_run_time = 0")
    missing = project.run("audit", project.app)
    assert missing.code == 0
    assert "note[unserved] hello in queue default: 1 job due for longer than the lock timeout" in missing.out
    damage(
        "insert into reltask_workers (id, host, pid, version, queues, tasks, concurrency, started_at, heartbeat_at,"
        " alive_until) values ('w', 'h', 1, '1', '[\"default\"]', '[\"hello\"]', 4, 0, 0, 9e15)"
    )
    idle = project.run("audit", project.app)
    assert idle.code == 1
    assert "violation[unclaimed] hello in queue default: 1 job" in idle.out


def test_losses_are_reported_with_their_reason(worked: Project) -> None:
    """Which worker, how often, and the recorded reason; a loss that was repaired is no violation."""
    damage("update reltask_runs set outcome = 'lost', error = 'no heartbeat since noon' where task = 'fragile'")
    damage("update reltask_workers set heartbeat_at = heartbeat_at + 3600000000")
    result = worked.run("audit", worked.app)
    assert result.code == 0
    assert "no heartbeat since noon" in result.out
    assert "The workers of 1 run were seen alive after the loss." in result.out


def test_pruned_history_is_reported_and_no_violation(worked: Project) -> None:
    """A job older than the retention may have lost its first rows."""
    damage("update reltask_jobs set created_at = 0")
    damage("update reltask_runs set fence = 7, slot_no = 7 where task = 'tick'")
    damage("update reltask_jobs set fence = 7, slot_no = 8 where task = 'tick'")
    result = worked.run("audit", worked.app)
    assert result.code == 0
    assert "tick: the oldest runs of 1 job have been pruned." in result.out


def test_the_queries_are_printed_for_a_dba(project: Project) -> None:
    """All six, in the database's own SQL, without a connection."""
    result = project.run("audit", "--database", "postgresql://nowhere/x", "--sql")
    assert result.code == 0
    for verb in ("audit_tasks", "audit_slots", "audit_durable", "audit_waiting", "audit_losses", "audit_limits"):
        assert f"-- {verb}\n" in result.out
    assert "reltask.runs" in result.out
    assert set(project.run("audit", "--database", "postgresql://nowhere/x", "--sql", "--json").json) == {
        "audit_tasks",
        "audit_slots",
        "audit_durable",
        "audit_waiting",
        "audit_losses",
        "audit_limits",
    }


def test_an_audit_changes_nothing(worked: Project) -> None:
    """It only reads."""

    def dump() -> list[str]:
        with closing(sqlite3.connect("jobs.db")) as connection:
            return list(connection.iterdump())

    before = dump()
    worked.run("audit", worked.app)
    assert dump() == before


def test_an_empty_database_says_so(project: Project) -> None:
    """An empty database has no violations."""
    project.run("migrate", project.app)
    result = project.run("audit", project.app)
    assert (result.code, result.out) == (
        0,
        "There are no jobs and no runs to check.\n\n0 jobs, 0 slots: 0 violations\n",
    )


def test_an_audit_may_take_as_long_as_it_is_allowed(worked: Project) -> None:
    """The limit is an option; an audit that does not end in time has found nothing out."""
    assert worked.run("audit", worked.app, "--timeout", "1h").code == 0
    late = worked.run("audit", worked.app, "--timeout", "0s")
    assert (late.code, "did not end within 0s" in late.err) == (69, True)
    assert worked.run("audit", worked.app, "--timeout", "soon").code != 0


def test_progress_is_one_line_on_a_terminal(worked: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal there is none: standard error may be a file."""
    assert "Reading" not in worked.run("audit", worked.app).err
    _show_progress(AuditProgress(part="slots", rows=200_000, of_rows=1_000_000))
    assert capsys.readouterr().err == "\rReading slots, 200,000 of 1,000,000 ledger rows"


def test_a_limit_that_is_counted_wrong_is_a_violation(worked: Project) -> None:
    """A place that no claim holds, and a due job that no mark will find."""
    damage("insert into reltask_limits (name, running, declaration, changed_at) values ('smtp', 2, '', 0)")
    damage("insert into reltask_limit_keys (key, name, running, tokens, refilled_at) values ('smtp', 'smtp', 1, 0, 0)")
    result = worked.run("audit", worked.app)
    assert result.code == 1
    assert "violation[limit-miscounted] key smtp: 1 place counted, 0 jobs claimed" in result.out
    damage("update reltask_limit_keys set running = 0")
    damage(
        f"insert into reltask_jobs (id, task, next_run_time, limit_key) values ('{UUID(int=7)}', 'hello', 1, 'smtp')"
    )
    assert "limit-stranded" not in worked.run("audit", worked.app).out
    damage("delete from reltask_marks")
    assert "violation[limit-stranded] key smtp" in worked.run("audit", worked.app).out
