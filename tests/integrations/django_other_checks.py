"""What other settings than the example's ask of the backend: see django_checks.py and test_django_interface.py."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.test import override_settings
from django.utils import timezone

from reltask.integrations.django import create_app
from tests.integrations.django_checking import run, task, task_backends


@task(backend="jobs")
def plain(value: int) -> int:
    return value


@task(backend="slow", queue_name="night")
def nightly(value: int) -> int:
    return value


def check_queue_that_no_task_declares_is_served() -> None:
    result = plain.using(queue_name="bulk").enqueue(1)
    run()
    result.refresh()
    assert (result.status, result.return_value, result.task.queue_name) == ("SUCCESSFUL", 1, "bulk"), result


def check_one_worker_runs_the_tasks_of_every_alias_on_its_database() -> None:
    results = [nightly.enqueue(1), plain.using(backend="slow").enqueue(2), plain.enqueue(3)]
    run()
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [1, 2, 3], results
    assert [result.backend for result in results] == ["slow", "slow", "jobs"]
    assert nightly.get_result(results[0].id).return_value == 1


def check_times_are_naive() -> None:
    """As the project's own are; one that is given counts in TIME_ZONE."""
    before = datetime.now() - timedelta(seconds=1)  # noqa: DTZ005 - Django sets the process's time zone
    result = plain.enqueue(1)
    run()
    later = plain.get_result(result.id)
    times = [result.enqueued_at, later.enqueued_at, later.started_at, later.last_attempted_at, later.finished_at]
    assert all(timezone.is_naive(at) for at in times), times
    assert [before, *times] == sorted([before, *times]), times
    at = (datetime.now() + timedelta(hours=1)).replace(microsecond=0)  # noqa: DTZ005
    waiting = plain.using(run_after=at).enqueue(1)
    run()
    waiting.refresh()
    assert (waiting.status, waiting.task.run_after) == ("READY", at)
    assert plain.get_result(waiting.id).task.run_after == at
    past = plain.using(run_after=at - timedelta(hours=2)).enqueue(1)
    run()
    past.refresh()
    assert past.status == "SUCCESSFUL"


def check_timedelta_counts_from_now() -> None:
    """As Django's documentation of `run_after` says."""
    result = plain.using(run_after=timedelta(hours=1), priority=3).enqueue(1)
    left = result.task.run_after - datetime.now()  # noqa: DTZ005
    assert timedelta(minutes=59) < left <= timedelta(hours=1), left
    assert result.task.priority == 3
    run()
    result.refresh()
    assert result.status == "READY"


def check_options_are_known() -> None:
    with override_settings(
        TASKS={"jobs": {"BACKEND": "reltask.integrations.django.Backend", "OPTIONS": {"databse": "x"}}}
    ):
        (found,) = task_backends["jobs"].check()
    assert "'databse'" in found.msg
    assert "database, imports, settings, version" in found.hint
    assert [*task_backends["jobs"].check(), *task_backends["slow"].check()] == []


def check_dummy_alias_stays_itself() -> None:
    assert type(task_backends["default"]).__name__ == "DummyBackend"
    assert create_app().registry.names() == [
        "tests.integrations.django_other_checks.nightly",
        "tests.integrations.django_other_checks.plain",
    ]
