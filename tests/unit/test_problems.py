"""What is wrong, in sentences: each rule, on an overview that shows just that."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from reltask.model.doctor import Finding, Level
from reltask.model.overview import (
    Group,
    Lane,
    LeaseSummary,
    Overview,
    PauseSummary,
    TaskHour,
    WorkerGroup,
    WorkerState,
)
from reltask.model.problems import find_problems, find_waits

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
US = int(NOW.timestamp()) * 1_000_000
MINUTE = 60_000_000


def overview(**parts: Any) -> Overview:
    """A system that is well, but for these parts."""
    empty: dict[str, Any] = {
        name: [] for name in ("lanes", "claimed", "paused", "dead", "recurring", "leases", "minutes")
    }
    served = {
        "fleet": [WorkerGroup('["mail"]', '["send"]', "0.1.0", "1", 1, 4)],
        "states": [WorkerState("alive", 1, 1, US)],
    }
    return Overview(now=NOW, most=10_000, **{**empty, **served, "tasks": [], "pauses": [], **parts})


def lane(queue: str, task: str, *, due: int = 3, minutes: int = 14) -> Lane:
    return Lane(queue, task, due, False, US - minutes * MINUTE, 0, False, 0, 0, None)


def texts(found: Overview) -> list[str]:
    return [problem.text for problem in find_problems(found)]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            {"lanes": [lane("mail", "send")], "fleet": [], "states": []},
            "No worker is alive, and 3 jobs are due.",
        ),
        (
            {"lanes": [lane("reports", "send")]},
            "send: 3 jobs due for 14 min in queue reports, where no live worker takes them.",
        ),
        ({"lanes": [lane("mail", "other")]}, "other: 3 jobs due for 14 min; no live worker knows the task."),
        (
            {"lanes": [lane("mail", "send")]},
            "mail: oldest due 14 min, 3 waiting; 1 worker serves it, with free places.",
        ),
        (
            {"lanes": [lane("mail", "send")], "claimed": [Group("mail", "send", 4, 0, US + MINUTE)]},
            "mail: oldest due 14 min, 3 waiting; 1 worker serves it and all 4 places are taken.",
        ),
        (
            {"claimed": [Group("mail", "send", 4, 2, US - 5 * MINUTE)]},
            "2 jobs not taken over, although the first lock expired 5 min ago.",
        ),
        (
            {"dead": [Group("mail", "send", 9, 2, US - 5 * MINUTE)]},
            "send: 2 jobs died in the last hour, the latest 5 min ago.",
        ),
        (
            {"dead": [Group("mail", "send", 9, 2, US - 5 * MINUTE), Group("bulk", "send", 1, 1, US - 3 * MINUTE)]},
            "send: 3 jobs died in the last hour, the latest 3 min ago.",
        ),
        (
            {
                "dead": [Group("mail", "send", 9, 2, US - 5 * MINUTE)],
                "tasks": [TaskHour("send", 50, 50, 1.0, 1.0, 1.0)],
            },
            "send: 2 jobs died in the last hour, the latest 5 min ago; 50% of 100 runs failed.",
        ),
        ({"tasks": [TaskHour("send", 50, 50, 1.0, 1.0, 1.0)]}, "send: 50% of 100 runs failed in the last hour."),
        (
            {"leases": [LeaseSummary("export", None, 3, False, 1, US - 2 * MINUTE)]},
            "export: no holder for 2 min.",
        ),
        (
            {"pauses": [PauseSummary("queue", "mail", "down", "ada", US - 3 * MINUTE)]},
            'Queue mail is paused for 3 min, by ada: "down".',
        ),
        ({"away": [2]}, "Shard 2 does not answer: its jobs are not counted here, and wait."),
    ],
)
def test_each_problem_has_its_sentence(parts: dict[str, Any], text: str) -> None:
    """One problem, and no other beside it; each says what to do."""
    found = find_problems(overview(**parts))
    assert [problem.text for problem in found] == [text]
    assert found[0].remedy


def test_a_part_says_what_keeps_its_own_jobs_waiting() -> None:
    """Of one queue or task: no problem of another, none that is not about due jobs."""
    found = overview(
        lanes=[lane("mail", "send"), lane("reports", "send"), lane("mail", "other", minutes=0)],
        dead=[Group("mail", "send", 9, 2, US - 5 * MINUTE)],
        pauses=[PauseSummary("queue", "reports", None, "ada", US), PauseSummary("task", "idle", None, "ada", US)],
    )
    unknown = "other: 3 jobs due for less than 1 s; no live worker knows the task."
    late = "mail: oldest due 14 min, 3 waiting; 1 worker serves it, with free places."
    paused = "Queue reports is paused for less than 1 s, by ada."
    waits = {
        name: [one.text for one in find_waits(found, **part)]
        for name, part in {"mail": {"queue": "mail"}, "reports": {"queue": "reports"}, "send": {"task": "send"}}.items()
    }
    assert waits == {"mail": [unknown, late], "reports": [paused], "send": [late, paused]}


def test_a_system_that_is_well_has_none() -> None:
    """Jobs that are due for a moment, and dead letters of yesterday, are no problem."""
    well = overview(lanes=[lane("mail", "send", minutes=0)], dead=[Group("mail", "send", 9, 0, US - 2000 * MINUTE)])
    assert texts(well) == []


def test_a_paused_queue_is_not_late() -> None:
    """That nothing of it runs is what was asked for: it is a note, not a problem."""
    found = overview(lanes=[lane("mail", "send")], pauses=[PauseSummary("queue", "mail", None, "ada", US - MINUTE)])
    assert texts(found) == ["Queue mail is paused for 60 s, by ada."]


def test_links_hold_any_name() -> None:
    """A name with an ampersand leads to its own list."""
    (problem,) = find_problems(overview(lanes=[lane("mail", "a&b c")]))
    assert problem.link == "jobs?state=due&task=a%26b+c"


def test_failing_runs_lead_to_where_their_errors_are() -> None:
    """To the jobs that wait for another attempt; if there are none, to the task: an empty list explains nothing."""
    failing = [TaskHour("send", 50, 50, 1.0, 1.0, 1.0)]
    (waiting,) = find_problems(
        overview(tasks=failing, lanes=[Lane("mail", "send", 0, False, None, 2, False, 0, 2, None)])
    )
    (ended,) = find_problems(overview(tasks=failing))
    assert (waiting.link, ended.link) == ("jobs?state=later&task=send", "tasks")
    assert waiting.command == ended.command == "reltask runs MODULE:app --task send"


def test_a_finding_says_what_was_checked() -> None:
    """As `reltask doctor` prints it: "96 of 100" alone means nothing."""
    findings = [Finding("connections", Level.PROBLEM, "96 of 100", "Lower database.pool_size.")]
    (problem,) = find_problems(overview(), findings=findings)
    assert problem.text == "connections: 96 of 100."
