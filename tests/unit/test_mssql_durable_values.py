"""Durable functions as SQL Server's batches take and answer them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec

from reltask.model.durable import ChildEnd, Recording, SignalView, StepKind, StepRecord, StepState, Waits
from reltask.model.job import Hold, NewJob, Outcome, Parent
from reltask.stores.mssql import durable_values, values

START = datetime(2026, 3, 1, 9, tzinfo=UTC)
JOB, CHILD = UUID(int=1), UUID(int=2)


def read(text: object) -> list[dict[str, Any]]:
    assert isinstance(text, str)
    return msgspec.json.decode(text, type=list[dict[str, Any]])


def step(name: str) -> StepRecord:
    return StepRecord(name=name, kind=StepKind.STEP, state=StepState.DONE, started_at=START, value='"a\\n"')


def test_steps_of_all_recordings_are_numbered_in_their_order() -> None:
    """Of two records of one step the last counts; each names its claim, because they travel apart from it."""
    first, second = Hold(JOB, 1), Hold(CHILD, 7)
    columns = durable_values.recordings(
        [
            Recording(hold=first, steps=(step("a"), step("b"))),
            Recording(hold=second, steps=(), progress=False),
            Recording(hold=first, steps=(step("a"),)),
        ]
    )
    assert [(one["id"], one["fence"], one["progress"]) for one in read(columns["recordings"])] == [
        (str(JOB), 1, 1),
        (str(CHILD), 7, 0),
        (str(JOB), 1, 1),
    ]
    sent = read(columns["steps"])
    assert [(one["nth"], one["id"], one["fence"], one["name"]) for one in sent] == [
        (0, str(JOB), 1, "a"),
        (1, str(JOB), 1, "b"),
        (2, str(JOB), 1, "a"),
    ]
    assert (sent[0]["started_at"], sent[0]["value"]) == ("2026-03-01T09:00:00.000000", '"a\\n"')


def test_a_child_names_the_step_that_waits_for_it() -> None:
    """All four columns or none: a constraint refuses anything else."""
    parent = Parent(job_id=JOB, slot_no=3, step="labels", nth=1)
    child, plain = read(values.new_jobs([NewJob(id=CHILD, task="t", parent=parent), NewJob(id=uuid4(), task="t")]))
    names = ("parent_id", "parent_slot", "parent_step", "parent_nth")
    assert [child[name] for name in names] == [str(JOB), 3, "labels", 1]
    assert not plain.keys() & set(names)


def answer(**fields: object) -> dict[str, object]:
    """A row of read_waits.sql."""
    names = ("kind", "name", "signal_id", "nth", "child_id", "outcome", "value", "error", "sent_at")
    return {"wake_seq": 4, **dict.fromkeys(names), **fields}


def test_waits_are_read_from_one_answer() -> None:
    """Signals and ends come in one result; a slot without any has one row, and one that is over has none."""
    signal = answer(kind="signal", name="go", signal_id="click", value="1", sent_at=START)
    end = answer(kind="end", name="labels", nth=0, child_id=CHILD, outcome="failed", error="boom")
    assert durable_values.waits([end, signal], JOB, 2) == Waits(
        wake_seq=4,
        signals=[SignalView(job_id=JOB, slot_no=2, name="go", id="click", value="1", sent_at=START, consumed_by=None)],
        ends=[ChildEnd(step="labels", nth=0, job_id=CHILD, outcome=Outcome.FAILED, value=None, error="boom")],
    )
    assert durable_values.waits([answer()], JOB, 2) == Waits(wake_seq=4, signals=[], ends=[])
    assert durable_values.waits([], JOB, 2) is None
