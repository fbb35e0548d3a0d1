"""Limits, cancelling, pauses, schedules and results on the command line: JSON, questions, and mistakes in words."""

from __future__ import annotations

import io

import pytest

from tests.cli.project import Project

CONTROL = """
from reltask import App, Limit

app = App("sqlite:///jobs.db")

@app.task(queue="mail", limit=Limit("smtp", running=5, rate="100/m", burst=20))
async def send(to: str) -> str:
    return f"sent to {to}"

@app.task(limit=Limit("each", running=1, by="customer"))
async def invoice(customer: int) -> None: ...

@app.task(max_attempts=1)
async def fragile() -> None:
    raise ValueError("it broke")

@app.task(every="10m")
async def tick() -> None: ...
"""


@pytest.fixture
def shop(project: Project) -> Project:
    """An app with limits, whose worker has declared them."""
    (project.folder / f"{project.name}.py").write_text(CONTROL)
    assert project.call("worker", project.app, "--once").code == 0
    return project


def say(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))


def waiting(shop: Project, count: int) -> list[str]:
    return [
        shop.run("enqueue", shop.app, "send", f'{{"to": "{nth}"}}', "--delay", "1h", "--json").json["id"]
        for nth in range(count)
    ]


# Limits


def test_limits_are_listed_and_changed(shop: Project) -> None:
    """The change is answered with the limit as it is now; 0 stops all, `any` lets any number."""
    listed = shop.run("limits", shop.app, "--json").json
    assert [(limit["name"], limit["running"], limit["rate"]) for limit in listed] == [
        ("each", 1, None),
        ("smtp", 5, "100/1m"),
    ]
    changing = ("limits", "change", "smtp", "--app", shop.app)
    changed = shop.run(*changing, "--running", "0", "--rate", "any", "--json").json
    assert (changed["running"], changed["rate"], changed["burst"]) == (0, None, None)
    assert shop.run(*changing, "--running", "any", "--rate", "5/s").out == (
        "Changed limit smtp: running any, rate 5/1s.\n"
    )
    shop.enqueue("invoice", customer=7)
    keys = shop.run("limits", "keys", "each", "--app", shop.app, "--json").json
    assert keys == [{"key": "each:7", "in_use": 0, "waiting": 1, "tokens": None}]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["change", "smtp"], "Give --running, --rate or --burst."),
        (["change", "smpt", "--running", "3"], "Declared limits: each, smtp."),
        (["keys", "smpt"], "Declared limits: each, smtp."),
        (["change", "smtp", "--running", "many"], "Write a whole number, or any."),
        (["change", "smtp", "--rate", "many"], 'write "100/m" or "5/30s"'),
        (["change", "each", "--burst", "4"], "Give a rate, or no burst."),
    ],
)
def test_mistakes_about_limits_are_said_in_words(shop: Project, arguments: list[str], error: str) -> None:
    """What is wrong, and what to write; nothing is changed."""
    result = shop.run("limits", *arguments, "--app", shop.app)
    assert result.code == 2
    assert error in result.err
    assert [limit["running"] for limit in shop.run("limits", shop.app, "--json").json] == [1, 5]


# Cancelling


def test_the_app_may_stand_before_the_ids(shop: Project) -> None:
    """As in commands without ids; `--app` says the same."""
    first, second = waiting(shop, 2)
    assert shop.run("jobs", "show", shop.app, first).out == shop.run("jobs", "show", first, "--app", shop.app).out
    cancelled = shop.run("jobs", "cancel", shop.app, first, second, "--yes").out
    assert cancelled == f"{first} cancelled\n{second} cancelled\n"
    assert "There is no job" in shop.run("dead", "show", shop.app, first).err
    assert shop.run("jobs", "show", shop.app).code == 2
    assert shop.run("jobs", "list", shop.app).code == 0


def test_jobs_are_cancelled_by_id(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered for; one that does not exist keeps none from being cancelled."""
    first, second = waiting(shop, 2)
    unknown = "01a1edc9-b9ef-7866-8f04-ff84756e4eb1"
    result = shop.run("jobs", "cancel", first, unknown, second, "--yes", "--app", shop.app)
    assert (result.code, result.out) == (1, f"{first} cancelled\n{second} cancelled\n")
    assert f"There is no job {unknown}" in result.err
    again = shop.run("jobs", "cancel", first, "--yes", "--json", "--app", shop.app)
    assert (again.code, again.json) == (0, [{"id": first, "answer": "cancelled"}])
    say(monkeypatch, "n\n")
    assert shop.run("jobs", "cancel", *waiting(shop, 1), "--app", shop.app).code == 130
    assert len(shop.run("jobs", "list", shop.app, "--task", "send", "--json").json) == 1


def test_a_filter_cancels_as_many_as_it_said(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """By task, queue and state; it asks with the number, and refuses another than --count."""
    jobs = waiting(shop, 3)
    other = shop.enqueue("invoice", customer=1)
    for wrong in ([], [other, "--queue", "mail"]):
        named = shop.run("jobs", "cancel", *wrong, "--app", shop.app)
        assert (named.code, "Give job ids, or --task, --queue and --state" in named.err) == (2, True)
    refused = shop.run("jobs", "cancel", "--queue", "mail", "--count", "2", "--yes", "--app", shop.app)
    assert (refused.code, "3 jobs match, not 2. Nothing was cancelled." in refused.err) == (2, True)
    nothing = ("--state", "due"), ("--state", "paused"), ("--task", "invoice")
    for narrower in nothing:
        none = shop.run("jobs", "cancel", "--queue", "mail", *narrower, "--yes", "--app", shop.app)
        assert (none.code, none.out) == (0, "No job matches.\n")
    say(monkeypatch, "y\n")
    done = shop.run("jobs", "cancel", "--queue", "mail", "--state", "later", "--app", shop.app)
    assert "Cancel 3 jobs?" in done.err
    assert {line.split()[0] for line in done.out.splitlines()} == set(jobs)
    assert [job["id"] for job in shop.run("jobs", "list", shop.app, "--queue", "default", "--json").json[:1]] == [other]


# What is removed


def test_what_cannot_be_undone_is_asked_about(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule and dead letters stay unless the answer is yes; the question says what will be removed."""
    (tick,) = shop.run("jobs", "list", shop.app, "--task", "tick", "--json").json
    for _ in range(2):
        shop.enqueue("fragile")
    assert shop.call("worker", shop.app, "--once").code == 0
    dead = ("dead", "discard", "--all", "--app", shop.app)
    schedule = ("jobs", "discard", tick["id"], "--app", shop.app)
    questions = (dead, "Remove 2 dead letters, with arguments and steps?"), (schedule, "of task tick?")
    for command, question in questions:
        say(monkeypatch, "n\n")
        refused = shop.run(*command)
        assert (refused.code, question in refused.err, refused.out) == (130, True, "")
    for command, _ in questions:
        say(monkeypatch, "y\n")
        assert "discarded" in shop.run(*command).out
    assert shop.run("dead", "discard", "--all", "--app", shop.app).out == "There are no dead letters.\n"
    assert shop.run("jobs", shop.app, "--json").json == []


# Pauses, schedules, results


@pytest.mark.parametrize(("group", "name"), [("queues", "mail"), ("tasks", "send")])
def test_a_pause_says_who_when_and_why(shop: Project, group: str, name: str) -> None:
    """Both commands say whether they changed anything."""
    why = ("--reason", "the provider is down", "--by", "ada")
    paused = shop.run(group, "pause", name, *why, "--app", shop.app, "--json").json
    assert (paused["changed"], paused["pause"]["reason"], paused["pause"]["paused_by"]) == (True, why[1], "ada")
    again = shop.run(group, "pause", name, "--app", shop.app, "--json").json
    assert (again["changed"], again["pause"]) == (False, paused["pause"])
    (listed,) = [one for one in shop.run(group, shop.app, "--json").json if one["name"] == name]
    assert listed["paused"] == paused["pause"]
    assert shop.run(group, "resume", name, "--app", shop.app, "--json").json["changed"] is True
    assert "was not paused; nothing was changed" in shop.run(group, "resume", name, "--app", shop.app).out


def test_schedules_are_listed_and_previewed(shop: Project) -> None:
    """With the next times in UTC; a preview needs no database, and a rule that cannot be read says how to write one."""
    (schedule,) = shop.run("schedules", shop.app, "--json").json
    assert (schedule["task"], schedule["rule"], len(schedule["next_fires"])) == ("tick", "every 10m", 5)
    winter = ("--timezone", "Europe/Berlin", "--from", "2026-01-01T00:00Z", "--count", "1", "--json")
    (fire,) = shop.run("schedules", "preview", "0 2 * * *", *winter).json
    assert (fire["local"], fire["utc"]) == ("2026-01-01T02:00:00+01:00", "2026-01-01T01:00:00Z")
    for wrong, error in (
        (["0 2 * *"], "Write five fields"),
        (["0 2 * * *", "--timezone", "Europe/Berln"], 'Did you mean "Europe/Berlin"?'),
        (["0 2 * * *", "--from", "soon"], "Write 2026-03-28T12:00Z."),
    ):
        assert error in shop.run("schedules", "preview", *wrong).err


def test_a_result_is_waited_for(shop: Project) -> None:
    """What it returned, as JSON; a failure and the end of the time are status 1, and say why."""
    sent, failed = shop.enqueue("send", to="ada"), shop.enqueue("fragile")
    early = shop.run("jobs", "result", sent, "--timeout", "10ms", "--app", shop.app)
    assert (early.code, "has not ended within 10ms" in early.err) == (1, True)
    assert shop.call("worker", shop.app, "--once").code == 0
    assert shop.run("jobs", "result", sent, "--app", shop.app).json == "sent to ada"
    dead = shop.run("jobs", "result", failed, "--app", shop.app)
    assert (dead.code, "is dead. Traceback" in dead.err, "it broke" in dead.err) == (1, True, True)
