"""Registering tasks: names, kinds, contexts and options, and every mistake that a decorator can catch."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Optional
from uuid import uuid4

import pytest

from reltask import App, Context, SyncContext, Task
from reltask.errors import ConfigurationError, DeclarationError, UnknownTask
from reltask.model.job import NewJob
from reltask.model.keys import KeyHash
from reltask.model.schedule import decode
from reltask.model.task import TaskKind, declaration_hash


@pytest.fixture
def app() -> App:
    """Nothing here connects: the directory does not exist."""
    return App("sqlite:////nowhere/reltask.db")


async def plain(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def test_decorated_function_stays_a_function(app: App) -> None:
    """A task can be called directly, and keeps its name, docstring and source."""
    task = app.task(plain)
    assert asyncio.run(task(1, b=3)) == 4
    shown: Any = task
    assert (shown.__name__, shown.__doc__, task.name) == ("plain", "Add.", "plain")
    assert task.function is plain
    assert repr(task) == "<task plain (async)>"
    assert isinstance(task, Task)


def test_context_stays_a_parameter_of_the_direct_call(app: App) -> None:
    """A direct call passes any ctx: a test needs no worker."""

    @app.task
    def double(ctx: SyncContext, number: int) -> tuple[object, int]:
        return ctx, 2 * number

    assert double("a fake", 4) == ("a fake", 8)  # type: ignore[arg-type]


def test_kind_follows_from_the_function(app: App) -> None:
    """`async def` runs on the loop, `def` in a thread."""

    @app.task
    def sync() -> None: ...

    assert app.task(plain).definition.kind is TaskKind.ASYNC
    assert sync.definition.kind is TaskKind.THREAD


def test_duplicate_name_is_an_error_that_suggests_one(app: App) -> None:
    """Two tasks of one name, also by alias, are refused: the error names both places, and what to write."""
    app.task(plain)
    with pytest.raises(DeclarationError, match=r"Two tasks are called 'plain'.*name=\"plain_2\"") as caught:
        app.task(plain)
    assert "tests.unit.test_tasks.plain" in str(caught.value)
    app.task(name="plain_2", aliases=["plain_1"])(plain)
    with pytest.raises(DeclarationError, match="'plain_1'"):
        app.task(name="plain_1")(plain)


def test_refused_task_leaves_no_trace(app: App) -> None:
    """A registration that fails registers neither name nor aliases."""
    app.task(name="taken")(plain)
    with pytest.raises(DeclarationError):
        app.task(name="fresh", aliases=["taken"])(plain)
    assert app.registry.names() == ["taken"]


def test_unknown_task_suggests_the_nearest_name(app: App) -> None:
    """The error suggests the probable name."""
    app.task(name="send_welcome")(plain)
    with pytest.raises(UnknownTask, match="Did you mean 'send_welcome'"):
        app.get_task("send_welcom")
    with pytest.raises(UnknownTask, match="Known tasks: send_welcome"):
        app.get_task("zzz")
    with pytest.raises(UnknownTask, match="Known tasks: none"):
        App("sqlite:///x.db").get_task("zzz")


def test_context_of_the_wrong_kind_is_refused(app: App) -> None:
    """`Context` in `async def`, `SyncContext` in `def`: a mismatch raises at the decorator."""

    def sync(ctx: Context) -> None: ...

    async def coroutine(ctx: SyncContext) -> None: ...

    with pytest.raises(DeclarationError, match="a thread task's context is SyncContext, not Context"):
        app.task(sync)
    with pytest.raises(DeclarationError, match="Annotate ctx: Context"):
        app.task(coroutine)


def test_context_must_be_the_first_parameter(app: App) -> None:
    """Elsewhere, or twice, it is a mistake."""

    async def second(number: int, ctx: Context) -> None: ...

    async def twice(ctx: Context, again: Context) -> None: ...

    for function in (second, twice):
        with pytest.raises(DeclarationError, match="only the first parameter can be the context"):
            app.task(function)


def test_context_is_given_by_position(app: App) -> None:
    """A keyword-only parameter could not be passed, and *args would be a tuple."""

    async def by_name(*, ctx: Context) -> None: ...

    async def star(*ctx: Context) -> None: ...

    def sync(*, ctx: SyncContext, number: int) -> None: ...

    for function in (by_name, star, sync):
        with pytest.raises(
            DeclarationError, match=r"the context must be a positional parameter.*Write ctx: (Sync)?Context, "
        ):
            app.task(function)
    assert app.registry.names() == []


def test_context_is_annotated_as_itself(app: App) -> None:
    """Inside another annotation it would look like an argument, and never be passed."""

    async def perhaps(ctx: Context | None = None) -> None: ...

    async def old_style(ctx: Optional[Context] = None) -> None: ...  # noqa: UP045 - as people write it

    async def noted(ctx: Annotated[Context, "mine"]) -> None: ...

    def either(ctx: Context | SyncContext) -> None: ...

    async def second(number: int, ctx: Context | None = None) -> None: ...

    for function in (perhaps, old_style, noted, either, second):
        with pytest.raises(DeclarationError, match=r"only contains the context class.*Write ctx: (Sync)?Context\."):
            app.task(function)
    assert app.registry.names() == []


def test_generators_are_refused(app: App) -> None:
    """A generator has no single end."""

    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(DeclarationError, match="is a generator function"):
            app.task(function)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priority": 10}, "priority=10 is outside 0 .* to 9"),
        ({"priority": -1}, "outside 0"),
        ({"queue": ""}, "a queue needs a name"),
        ({"queue": 5}, "Task task: queue=5 is not a string. Write it in quotes"),
        (
            {"priority": "3"},
            "Task task: priority='3' is not a whole number. Write it without quotes or a decimal point",
        ),
        ({"max_attempts": "3"}, "Task task: max_attempts='3' is not a whole number"),
        ({"name": 5}, "name=5 is not a string"),
        ({"aliases": [5]}, "name=5 is not a string"),
        ({"name": "a\udcff"}, r"name='a\\udcff' contains a lone surrogate.*Decode"),
        ({"name": "a\x07"}, r"name='a\\x07' contains the control character U\+0007"),
        ({"name": "a\u2066b"}, r"name='a\\u2066b' contains the control character U\+2066"),
        ({"aliases": ["a\n"]}, r"U\+000A"),
        ({"queue": "a\x85"}, r"queue='a\\x85' contains the control character U\+0085"),
        ({"every": "9ms"}, "every: 9ms is too short for an interval.*at least 10ms"),
        ({"max_attempts": 0}, "max_attempts=0 it would never run"),
        ({"timeout": 30}, "timeout: 30 is not a duration"),
        ({"timeout": "0s"}, "timeout must be greater than zero"),
        ({"timeout": "9" * 30 + "d"}, "timeout|too large|must have magnitude"),
        ({"lock_timeout": "soon"}, "lock_timeout: 'soon' is not a duration"),
        ({"lock_timeout": "0s"}, "lock_timeout=0s is too short for a lock.*Write at least 500ms"),
        ({"lock_timeout": "499ms"}, "lock_timeout=499ms is too short for a lock.*Write at least 500ms"),
        ({"backoff": 5}, "backoff: 5 is not a duration"),
        ({"every": 600}, "every: 600 is not a duration"),
        ({"every": "0s"}, "too short for an interval"),
        ({"every": "10m", "cron": "* * * * *"}, "every and cron were both given"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 9 * * *", "timezone": "Europe/Berlyn"}, "Berlyn"),
        ({"timezone": "Europe/Berlin"}, "timezone needs cron"),
        ({"every": "10m", "missed": "skip"}, "missed needs a grid"),
        ({"align": True}, "need every"),
        ({"cron": "* * * * *", "missed": "skip", "missed_grace": "0s"}, "missed_grace=0s is too short.*at least 1s"),
        ({"every": "1m", "align": True, "missed": "skip", "missed_grace": "999ms"}, "missed_grace=999ms is too short"),
        ({"aliases": "old"}, r"aliases='old' is a string, not a list of names.*Write aliases=\['old'\]"),
    ],
)
def test_malformed_options_are_refused_at_the_decorator(app: App, options: dict[str, object], why: str) -> None:
    """Each wrong option raises one clear DeclarationError, and nothing is registered."""

    async def task() -> None: ...

    with pytest.raises(DeclarationError, match=why):
        app.task(**options)(task)  # type: ignore[call-overload]
    assert app.registry.names() == []
    assert app.declarations() == []


def test_recurring_task_needs_no_arguments(app: App) -> None:
    """A schedule calls its task without arguments: parameters without defaults are refused, with an alternative."""

    async def needs(user: int) -> None: ...

    with pytest.raises(DeclarationError, match=r"its parameters need some.*app.schedule\(task.call"):
        app.task(every="10m")(needs)


def test_declaration_hash_changes_with_what_is_declared() -> None:
    """The hash covers schedule, queue, priority, attempts, lock timeout, arguments and headers; not id and version."""

    def job(**fields: object) -> NewJob:
        return NewJob(**{"id": uuid4(), "task": "t", "schedule": '{"every":"10m"}', **fields})  # type: ignore[arg-type]

    base = declaration_hash(job(), KeyHash())
    assert base == declaration_hash(job(app_version="2", declaration="x"), KeyHash())
    changes: list[dict[str, object]] = [
        {"schedule": '{"every":"5m"}'},
        {"queue": "mail"},
        {"priority": 1},
        {"max_attempts": 3},
        {"lock_timeout": timedelta(minutes=5)},
        {"args": '{"a":1}'},
        {"headers": '{"a":1}'},
    ]
    assert len({base, *(declaration_hash(job(**change), KeyHash()) for change in changes)}) == 8


@pytest.mark.parametrize("what", [functools.partial(plain, 1), "plain", None])
def test_only_functions_become_tasks(app: App, what: Any) -> None:
    """Objects without a name or signature, or that cannot be called, are refused, with what to write instead."""
    decorators: list[Any] = [app.task, app.task(name="named")]
    for decorate in decorators:
        with pytest.raises(DeclarationError, match=f"A task is a function, not {type(what).__name__}.*async def"):
            decorate(what)
    assert app.registry.names() == []


def test_only_tasks_are_scheduled(app: App) -> None:
    """An undecorated function is named, with the missing decorator; task.using(…) is a task."""
    schedule: Any = app.schedule
    with pytest.raises(DeclarationError, match=r"takes a task, not function. Decorate it with @app.task"):
        schedule(plain, every="1h")
    with pytest.raises(ConfigurationError, match="key=5 is not a string"):
        schedule(app.task(plain).call(1), key=5, every="1h")


def test_version_is_a_text() -> None:
    """A number would fail at the next deploy, when a worker compares it with the stored one."""
    number: Any = 2
    with pytest.raises(ConfigurationError, match=r"version=2 is not a string. Write it in quotes"):
        App("sqlite:////nowhere/reltask.db", version=number)


def test_misspelt_option_is_refused_with_the_right_one(app: App) -> None:
    """An unknown option is an error that names the task and suggests the right one."""
    decorate: Any = app.task
    with pytest.raises(DeclarationError, match=r"Task plain: @app.task has no option 'evry'. Did you mean 'every'\?"):
        decorate(evry="10m")(plain)


def test_shortest_lock_timeout(app: App) -> None:
    """The shortest length for `app.lease` is also valid for the claims of a task, a call or a worker."""
    task = app.task(lock_timeout="500ms")(plain)
    assert task.using(lock_timeout="500ms").call(1).job(uuid4()).lock_timeout == timedelta(milliseconds=500)
    shortest = App("sqlite:////nowhere/reltask.db", settings={"worker.lock_timeout": "500ms"})
    assert shortest.settings.worker.pace().fault() is None


def test_using_twice_keeps_what_was_said_first(app: App) -> None:
    """Options add up: the second `using` changes what it names, and nothing else."""
    task = app.task(plain)
    job = task.using(queue="mail", priority=1).using(priority=2, delay="5m").call(1).job(uuid4())
    assert (job.queue, job.priority, job.delay) == ("mail", 2, timedelta(minutes=5))
    unlimited = task.using(max_attempts=None).using(key="k").call(1).job(uuid4())
    assert (unlimited.max_attempts, unlimited.key) == (None, "k")


def test_schedule_takes_the_key_of_its_call(app: App) -> None:
    """A key may be in the call or beside it, also in both if it is the same; the call's other options apply."""
    task = app.task(plain)
    app.schedule(task.using(key="k7", queue="mail").call(7), every="1h")
    app.schedule(task.using(key="k8").call(8), key="k8", every="1h")
    app.schedule(task.call(9), key="k9", every="1h")
    declared = {(job.key, job.args, job.queue) for job in app.declarations()}
    assert declared == {("k7", '{"a":7}', "mail"), ("k8", '{"a":8}', "default"), ("k9", '{"a":9}', "default")}
    with pytest.raises(DeclarationError, match="scheduled twice with key 'k7'"):
        app.schedule(task.using(key="k7").call(1), every="1h")


def test_grace_that_a_claim_can_meet(app: App) -> None:
    """A claim is always a little late: less than a second would skip every slot.

    Rows with less are still read.
    """

    @app.task(cron="0 9 * * *", missed="skip", missed_grace="1s")
    async def task() -> None: ...

    with pytest.raises(DeclarationError, match="missed_grace=1ms is too short"):
        app.schedule(task, key="k", cron="0 9 * * *", missed="skip", missed_grace="1ms")
    assert len(app.declarations()) == 1
    assert decode('{"cron":"0 9 * * *","missed":"skip","missed_grace":"0s"}').missed_grace == timedelta(0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": "a"}, "key='a' in the call, and key='b'"),
        ({"delay": "5m"}, "delay= in a call that is scheduled"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, "at= in a call that is scheduled"),
        ({"key": "b", "every": "5m"}, "every= or cron= in a call that is scheduled"),
    ],
)
def test_schedule_refuses_what_it_would_drop(app: App, options: dict[str, Any], why: str) -> None:
    """A schedule has its own times and key: other ones in the call are refused, with a remedy."""
    call = app.task(plain).using(**options).call(1)
    with pytest.raises(DeclarationError, match=f"Task plain: {why}.* (Leave|Give)"):
        app.schedule(call, key="b", every="1h")
    assert app.declarations() == []
