"""Bodies in child processes, in real time: results, deaths, kills, and a worker that dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from reltask import Context, ProcessContext, SyncContext, events
from reltask.errors import DeclarationError
from reltask.worker import posix
from reltask.worker.process import Message, Order, child_command
from tests.worker import process_tasks
from tests.worker.worker_harness import HarnessApp, WorkerHarness

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX"),
]


def child_app(
    live: WorkerHarness, function: Callable[..., Any], *, stop_grace: str = "100ms", **options: Any
) -> HarnessApp:
    app = live.app(settings={"worker.stop_grace": stop_grace})
    app.task(isolation="process", name="child", **options)(function)
    return app


async def outcome(app: HarnessApp, *args: Any) -> tuple[str, str | None, str | None]:
    """Run the child task once: outcome, result and error."""
    await app.get_task("child").enqueue(*args)
    await app.drain()
    (run,) = await app.runs()
    app.close()
    return run.outcome, run.result, run.error


async def wait_for_mark(mark: Path) -> int:
    """The pid that the child wrote when its function began."""
    while not (text := _read(mark)):  # noqa: ASYNC110 - a file is all that the child can leave
        await asyncio.sleep(0.01)
    return int(text)


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def wait_for_death(pid: int) -> None:
    while _is_alive(pid):  # noqa: ASYNC110 - it is not our child, so it cannot be waited for
        await asyncio.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    except ProcessLookupError:
        return False
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


async def test_child_returns_into_the_ledger(live: WorkerHarness) -> None:
    """Arguments go as JSON, the result comes back as JSON."""
    assert await outcome(child_app(live, process_tasks.add), 2, 3) == ("succeeded", "5", None)


async def test_child_finds_the_function_behind_its_decorator(live: WorkerHarness) -> None:
    """In the user's module the name is the task; the child calls the function behind it."""
    app = child_app(live, process_tasks.decorated.function)
    assert (await outcome(app, 2, 3))[:2] == ("succeeded", "5")


async def test_child_has_context_and_progress(live: WorkerHarness) -> None:
    """The child's ctx has the facts of the run; its progress is written to the row."""
    app = child_app(live, process_tasks.facts)
    _, result, error = await outcome(app, "half way")
    assert error is None
    facts = json.loads(result or "")
    assert (facts["task"], facts["slot"], facts["attempt"], facts["fence"]) == ("child", 1, 1, 1)
    assert facts["key"] == f"{facts['job']}:1"
    assert facts["pid"] != os.getpid()
    assert facts["cancelled"] is False
    assert facts["last_progress"] is None
    assert app.faults.calls["record_progress"] == 1


@pytest.mark.parametrize(
    ("how", "ended", "text"),
    [
        ("retry", "failed", "again"),
        ("snooze", "snoozed", "later"),
        ("cancel", "cancelled", "enough"),
        ("raise", "failed", "ZeroDivisionError: by nought"),
        ("exit", "failed", "SystemExit: 3"),
        ("die", "failed", "ended without an answer (exit status 9)"),
        ("segfault", "failed", "ended without an answer (exit status -11)"),
        ("unstorable", "succeeded", None),
        ("nothing", "succeeded", None),
    ],
)
async def test_each_way_a_child_can_end(live: WorkerHarness, how: str, ended: str, text: str | None) -> None:
    """Signals of the task, errors with the child's traceback, and crashes: each is an outcome of the slot."""
    app = child_app(live, process_tasks.end, max_attempts=1)
    result = await outcome(app, how)
    assert (result[0], result[1]) == (ended, None)
    assert (text or "") in (result[2] or "")
    assert len(app.log.of(events.ResultNotStored)) == (how == "unstorable")


@pytest.mark.parametrize("line", ["cannot read %s", "%d files"])
async def test_log_line_that_fails_does_not_affect_the_child(live: WorkerHarness, line: str) -> None:
    """Neither a name that is not text nor a wrong format costs the task its success."""
    assert await outcome(child_app(live, process_tasks.log), line) == ("succeeded", '"logged"', None)


async def test_reason_that_is_not_text_changes_no_outcome(live: WorkerHarness) -> None:
    """What JSON cannot hold is escaped; the task's signal keeps its meaning."""
    assert await outcome(child_app(live, process_tasks.cancel)) == ("cancelled", None, r"cannot read \udcff")


async def test_child_that_returns_a_coroutine_has_not_run(live: WorkerHarness) -> None:
    """The coroutine is not awaited there either: a failure."""
    ended, _, error = await outcome(child_app(live, process_tasks.forget_to_await, max_attempts=1))
    assert ended == "failed"
    assert "returned a coroutine that was never run" in (error or "")


async def test_what_a_child_prints_goes_to_stderr(live: WorkerHarness, capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is the pipe to the worker: prints of the task must neither break nor forge its answer."""
    assert (await outcome(child_app(live, process_tasks.talk)))[:2] == ("succeeded", '"said"')
    out, err = capfd.readouterr()
    assert "for people only" in err
    assert "for people only" not in out


async def test_child_sees_its_timeout(live: WorkerHarness, tmp_path: Path) -> None:
    """At the timeout the child gets SIGTERM: `cancelled` is set and `Stopped` is raised in its function."""
    app = child_app(live, process_tasks.sleep_until_stopped, timeout="700ms", max_attempts=1)
    ended, _, error = await outcome(app, str(tmp_path / "mark"))
    assert (ended, error) == ("failed", "TimeoutError: the run took longer than its timeout of 0.7 s")


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
async def test_signal_from_elsewhere_does_not_stop_a_child(
    live: WorkerHarness, tmp_path: Path, name: signal.Signals
) -> None:
    """A supervisor may send SIGTERM to workers and children at once: bodies still finish within the grace."""
    app = live.app(settings={"worker.shutdown_grace": "5m"})
    app.task(isolation="process", name="child", max_attempts=1)(process_tasks.wait_for)
    go, mark = tmp_path / "go", tmp_path / "mark"

    async def signal_the_child(pid: int) -> None:
        await app.log.wait(events.WorkerStopping)
        os.kill(pid, name)
        go.touch()

    async with app.worker():
        await app.get_task("child").enqueue(str(go), str(mark))
        signalled = asyncio.create_task(signal_the_child(await wait_for_mark(mark)))
    await signalled
    assert [(run.outcome, run.result) for run in await app.runs()] == [("succeeded", '"finished"')]
    app.close()


def test_signal_from_elsewhere_does_not_stop_a_child_that_has_hardly_begun() -> None:
    """Nor while the interpreter starts, before a handler is installed."""
    facts = dict.fromkeys(
        ("task", "key", "slot_no", "attempt", "fence", "idempotency_key", "worker", "headers", "queue")
    )
    order = Order(
        module=process_tasks.__name__,
        file=None,
        qualname="add",
        path=sys.path,
        args='{"a":2,"b":3}',
        takes_context=False,
        is_surrounded=False,
        facts={**facts, "job_id": uuid4(), "nominal_time": datetime.now(UTC), "last_progress": None},
    )
    with posix.spawn(child_command()) as child:
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGINT)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        child.stdin.flush()
        answer = child.stdout.readline()
    assert bytes(msgspec.json.decode(answer, type=Message).value) == b"5"


@pytest.mark.timeout(30)
async def test_child_can_end_the_processes_that_it_forks(live: WorkerHarness) -> None:
    """As a pool does, by SIGTERM: a signal that the child ignores must not be ignored by processes it forks."""
    assert await outcome(child_app(live, process_tasks.fork_and_terminate)) == ("succeeded", "-15", None)


async def test_child_that_is_stopped_ends_the_program_it_runs(live: WorkerHarness, tmp_path: Path) -> None:
    """`Stopped` is raised out of whatever the body waits for; programs it started can be ended by SIGTERM."""
    app = child_app(live, process_tasks.run_a_program, stop_grace="10s")
    async with app.worker():
        await app.get_task("child").enqueue(str(tmp_path / "mark"))
        await wait_for_mark(tmp_path / "mark")
    assert (tmp_path / "mark.ended").read_text() == "ended by SIGTERM"
    assert await app.outcomes() == ["released"]
    app.close()


async def test_child_with_its_own_handler_gets_sigterm(live: WorkerHarness, tmp_path: Path) -> None:
    """A SIGTERM handler in the body is called, and `cancelled` is already set."""
    app = child_app(live, process_tasks.stop_in_its_own_way, stop_grace="10s")
    async with app.worker():
        await app.get_task("child").enqueue(str(tmp_path / "mark"))
        await wait_for_mark(tmp_path / "mark")
    assert (tmp_path / "mark.ended").read_text() == "cancelled: True"
    app.close()


@pytest.mark.parametrize("body", [process_tasks.ignore_everything, process_tasks.hold_the_interpreter])
async def test_child_that_does_not_end_is_killed(live: WorkerHarness, tmp_path: Path, body: Callable[..., Any]) -> None:
    """After the grace a child is killed, whatever it ignores; then its claim is released."""
    app = child_app(live, body, stop_grace="1s")  # a killed child has as long to exit
    async with app.worker():
        await app.get_task("child").enqueue(str(tmp_path / "mark"))
        pid = await wait_for_mark(tmp_path / "mark")
    await wait_for_death(pid)
    assert [run.outcome for run in await app.runs()] == ["released"]
    assert app.log.of(events.BodyStuck) == []
    app.close()


WORKER = """
import asyncio, sys
from reltask import App
from tests.worker import process_tasks

app = App(sys.argv[1])
task = app.task(isolation="process", name="child")(process_tasks.ignore_everything)

async def main():
    async with app.worker():
        await task.enqueue(sys.argv[2])
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_child_ends_itself_when_its_worker_dies(live: WorkerHarness, tmp_path: Path) -> None:
    """Kill -9 of the worker closes the child's pipe: the child exits by itself."""
    mark = tmp_path / "mark"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    worker = subprocess.Popen(  # noqa: ASYNC220 - started once, killed at the end
        [sys.executable, "-c", WORKER, f"sqlite:///{live.path}", str(mark)], env=environment
    )
    try:
        pid = await wait_for_mark(mark)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    await wait_for_death(pid)


def test_process_isolation_refuses_what_cannot_work(live: WorkerHarness) -> None:
    """Coroutines, nested functions, lambdas, and other kinds of context are refused at the decorator."""
    app = live.app()
    decorate: Any = app.task(isolation="process")

    async def coroutine() -> None: ...

    def local() -> None: ...

    for function, why in [
        (coroutine, "needs a plain function"),
        (local, "cannot import a lambda or a nested function"),
        (lambda: None, "cannot import a lambda or a nested function"),
        (_with_context, "a process task's context is ProcessContext, not Context"),
        (_with_sync_context, "a process task's context is ProcessContext, not SyncContext"),
    ]:
        with pytest.raises(DeclarationError, match=why):
            decorate(function)
    with pytest.raises(DeclarationError, match="isolation='thread' is unknown"):
        app.task(isolation="thread")(process_tasks.add)
    with pytest.raises(DeclarationError, match="a thread task's context is SyncContext, not ProcessContext"):
        app.task(_with_process_context)


def _with_context(ctx: Context) -> None: ...


def _with_sync_context(ctx: SyncContext) -> None: ...


def _with_process_context(ctx: ProcessContext) -> None: ...
