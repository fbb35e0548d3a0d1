"""An event without a listener is not created; a listener, the log or a subscriber, misses none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from reltask import App, events
from reltask.model import schedule


@pytest.fixture
def levels() -> Iterator[None]:
    """The log lines of one task are on, those of the others off; reset afterwards."""
    loggers = {name: logging.getLogger(f"reltask.task.{name}") for name in ("loud", "quiet", "hourly")}
    loggers["loud"].setLevel(logging.INFO)
    loggers["quiet"].setLevel(logging.WARNING)
    loggers["hourly"].setLevel(logging.WARNING)
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)  # Python's own default, whatever tests before this one have set
    yield
    root.setLevel(before)
    for logger in loggers.values():
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """Two tasks, and no subscriber yet."""
    app = App(f"sqlite:///{tmp_path / 'reltask.db'}")

    @app.task(name="loud")
    async def loud() -> None: ...

    @app.task(name="quiet")
    async def quiet() -> None: ...

    yield app
    app.close()


async def run_both(app: App) -> None:
    await app.get_task("loud").enqueue()
    await app.get_task("quiet").enqueue()
    async with app.worker() as worker:
        await worker.drained()


@pytest.mark.usefixtures("levels")
def test_the_log_of_one_task_can_be_on_while_others_are_off(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Each task has its own logger, whose level decides whether its lines are written."""
    asyncio.run(run_both(app))
    lines = [(record.name, record.__dict__["event"]) for record in caplog.records if "task" in record.name]
    assert lines == [("reltask.task.loud", "RunStarted"), ("reltask.task.loud", "RunSucceeded")]


@pytest.mark.usefixtures("levels")
def test_a_subscriber_gets_every_run_whatever_is_logged(app: App) -> None:
    """Metrics must count all runs: a subscriber, even a late one, gets what the log leaves out."""
    heard = []

    def subscribed(event: events.Event) -> None:
        if isinstance(event, events.RunStarted | events.RunSucceeded):
            heard.append((event.task, type(event).__name__))

    async def scenario() -> None:
        async with app.worker() as worker:
            app.subscribe(subscribed)
            await app.get_task("quiet").enqueue()
            await worker.drained()

    asyncio.run(scenario())
    assert heard == [("quiet", "RunStarted"), ("quiet", "RunSucceeded")]


@pytest.mark.usefixtures("levels")
def test_a_success_that_cannot_be_written_is_reported(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body returns, but its next time cannot be computed: that is a failure, reported even without a listener."""

    @app.task(name="hourly", every="1h")
    async def hourly() -> None: ...

    def no_next_time(*_: object, **__: object) -> None:
        raise OSError("the time zones are gone")

    async def scenario() -> None:
        async with app.worker() as worker:
            await worker.drained()

    monkeypatch.setattr(schedule, "next_slot", no_next_time)
    asyncio.run(scenario())
    (record,) = [record for record in caplog.records if "task" in record.name]
    assert (record.__dict__["event"], record.levelname) == ("RunFailed", "ERROR")
