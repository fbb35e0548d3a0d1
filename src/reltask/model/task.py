"""Task definitions: a function, how it is run, and the defaults of its jobs."""

from __future__ import annotations

import difflib
import dis
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import timedelta
from enum import StrEnum
from types import CodeType
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from reltask.errors import ConfigurationError, DeclarationError, UnknownTask
from reltask.model.arguments import Arguments, annotations_of
from reltask.model.backoff import Backoff
from reltask.model.durable import CALLS
from reltask.model.duration import Duration, format_duration, parse_duration
from reltask.model.job import NewJob
from reltask.model.keys import KeyHash
from reltask.model.limit import Limit, LimitRule, TaskLimits
from reltask.model.pace import SHORTEST
from reltask.model.schedule import Schedule, make_schedule
from reltask.model.settings import LARGEST
from reltask.model.surroundings import Surroundings

ONE_OFF_ATTEMPTS = 5
PRIORITIES = range(10)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line separators, and what changes the direction of text: a name with one would be shown as a
text that it is not."""
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class TaskKind(StrEnum):
    """Where a body runs."""

    ASYNC = "async"
    """On the worker's event loop."""
    THREAD = "thread"
    """In a thread of the worker."""
    PROCESS = "process"
    """In a child process of its own."""


class UniqueRule(Struct, frozen=True, kw_only=True):
    """Of which calls of a task only one job is there at a time."""

    parameters: tuple[str, ...] = ()
    """Those that count; empty: all."""
    keep: timedelta | None = None
    until_start: bool = False


class TaskOptions(Struct, frozen=True, kw_only=True):
    """The defaults of a task's jobs and runs. Durations are already parsed."""

    queue: str = "default"
    priority: int = 5
    max_attempts: int | UnsetType | None = UNSET
    """None: no limit. Unset: none for recurring jobs, ONE_OFF_ATTEMPTS for one-offs."""
    backoff: Backoff | None = None
    """None: what suits the schedule."""
    timeout: timedelta | None = None
    """How long one run may take; None: as long as its heartbeats go through."""
    lock_timeout: timedelta | None = None
    """None: the worker's setting."""
    keep_arguments: bool | None = None
    """Whether the ledger keeps the arguments of jobs that have ended; None: the worker's setting."""
    unique: UniqueRule | None = None
    """None: any number of jobs with the same arguments may be there."""


class TaskDefinition:
    """A registered function. It does not change after its registration."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        kind: TaskKind,
        options: TaskOptions,
        schedule: Schedule | None,
        aliases: tuple[str, ...] = (),
        context: type | None = None,
        limit: object = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.kind = kind
        self.options = options
        self.schedule = schedule
        self.aliases = aliases
        self.context = context
        """The context class that the first parameter asks for, or None."""
        self.surroundings = surroundings or Surroundings()
        """What its app puts around each run."""
        self.arguments = Arguments(function, skip_first=context is not None)
        self.limits = None if limit is None else TaskLimits(name, limit, self.arguments.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, then its former names; each once."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    def __repr__(self) -> str:
        return f"<task {self.name} ({self.kind})>"


class Registry:
    """The tasks that a process knows, by name and alias."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskDefinition] = {}
        """By name and by alias."""
        self.known: list[str] = []
        """Every name and alias, sorted: what a claim may take."""
        self.limits: dict[str, Limit] = {}
        """By name. Tasks may share one."""
        self.served = {"default"}
        """Queues that a worker serves although no task declares them."""

    def __iter__(self) -> Iterator[TaskDefinition]:
        return (task for name, task in self.tasks.items() if name == task.name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def names(self) -> list[str]:
        """Every name and alias, sorted: what a claim may take."""
        return list(self.known)

    def queues(self) -> tuple[str, ...]:
        """The default queues of these tasks, and those that are served in any case."""
        return tuple(sorted({*self.served, *(task.options.queue for task in self)}))

    def serve(self, queues: Iterable[str]) -> None:
        """Serve these queues, too."""
        self.served.update(queues)

    def add(self, task: TaskDefinition) -> None:
        """Register a task; a second one of the same name is an error."""
        for name in task.names:
            check_text("name", name, DeclarationError)
            other = self.tasks.get(name)
            if other is not None:
                raise DeclarationError(
                    f"Two tasks are called {name!r}: {_where(other.function)} and {_where(task.function)}.",
                    remedy=f'Give one of them another name: @app.task(name="{name}_2").',
                )
        self._add_limits(task)
        for name in task.names:
            self.tasks[name] = task
        self.known = sorted(self.tasks)

    def _add_limits(self, task: TaskDefinition) -> None:
        """Register a task's limits; another one of the same name is an error."""
        limits = {} if task.limits is None else task.limits.by_name
        for name, limit in limits.items():
            other = self.limits.get(name, limit)
            if other is not limit and (other.rule(name) != limit.rule(name) or other.by != limit.by):
                raise DeclarationError(
                    f"Task {task.name}: {limit!r} differs from {other!r}, which has the name {name!r}, too.",
                    remedy="Let the tasks share one Limit, or give it another name.",
                )
        self.limits |= limits

    def limit_rules(self, app_version: str | None) -> list[LimitRule]:
        """The limits that a worker declares."""
        return [limit.rule(name, app_version) for name, limit in self.limits.items()]

    def find(self, name: str) -> TaskDefinition | None:
        """The task of this name or alias."""
        return self.tasks.get(name)

    def get(self, name: str) -> TaskDefinition:
        """The task of this name or alias, or UnknownTask with the nearest name."""
        task = self.tasks.get(name)
        if task is None:
            near = difflib.get_close_matches(name, self.tasks, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known tasks: {', '.join(self.names()) or 'none'}."
            raise UnknownTask(f"No task is called {name!r}.", remedy=hint)
        return task


def kind_of(function: Callable[..., Any], isolation: str | None) -> TaskKind:
    """Where a function runs, from what it is and from `isolation=`."""
    name = getattr(function, "__name__", repr(function))
    is_async = inspect.iscoroutinefunction(function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise DeclarationError(
            f"Task {name} is a generator function.", remedy="Use `def` or `async def` without yield."
        )
    if isolation is None:
        return TaskKind.ASYNC if is_async else TaskKind.THREAD
    if isolation != "process":
        raise DeclarationError(
            f"Task {name}: isolation={isolation!r} is unknown.", remedy='Write isolation="process" or leave it out.'
        )
    if is_async:
        raise DeclarationError(
            f'Task {name}: isolation="process" needs a plain function.', remedy="Write `def` instead of `async def`."
        )
    if "<" in function.__qualname__:  # <locals> or <lambda>
        raise DeclarationError(
            f"Task {name}: a child process imports its function, and cannot import a lambda or a nested function.",
            remedy="Define it at the top level of a module.",
        )
    return TaskKind.PROCESS


def context_of(function: Callable[..., Any], kind: TaskKind, contexts: dict[TaskKind, type]) -> type | None:
    """The context class that the first parameter is annotated with; a class for another kind of task is an error."""
    hints = annotations_of(function)
    signature = inspect.signature(function).parameters
    parameters = list(signature)
    asked = [(name, hints[name]) for name in parameters if _mentions(hints.get(name), contexts.values())]
    if not asked:
        return None
    for name, hint in asked:
        if hint not in contexts.values():
            raise DeclarationError(
                f"Task {function.__name__}: the annotation of {name} only contains the context class.",
                remedy=f"Write {name}: {contexts[kind].__name__}. The worker always passes a context.",
            )
    name, hint = asked[0]
    if len(asked) > 1 or name != parameters[0]:
        raise DeclarationError(f"Task {function.__name__}: only the first parameter can be the context.")
    if signature[name].kind not in _BY_POSITION:
        raise DeclarationError(
            f"Task {function.__name__}: the context must be a positional parameter.",
            remedy=f"Write {name}: {hint.__name__}, without a star before it.",
        )
    if hint is not contexts[kind]:
        raise DeclarationError(
            f"Task {function.__name__}: a {kind} task's context is {contexts[kind].__name__}, not {hint.__name__}.",
            remedy=f"Annotate {name}: {contexts[kind].__name__}.",
        )
    if kind is TaskKind.PROCESS:
        _refuse_durable(function, name)
    return contexts[kind]


def _refuse_durable(function: Callable[..., Any], context: str) -> None:
    """Refuse durable calls in a child process, which has no connection to record them."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    found = None if code is None else _durable_call(code, context)
    if found is not None:
        raise DeclarationError(
            f"Task {function.__name__}: {context}.{found}() cannot be called in a child process.",
            remedy='Write it without isolation="process", and run what needs a process as a child: ctx.run("name", …).',
        )


def _durable_call(code: CodeType, context: str) -> str | None:
    """The first durable call of a function's context, also in functions inside it."""
    last: object = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and last == context and instruction.argval in CALLS:
            return str(instruction.argval)
        loaded = instruction.argval if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else None
        last = loaded[-1] if isinstance(loaded, tuple) else loaded  # two names in one instruction
    inside = (part for part in code.co_consts if isinstance(part, CodeType))
    return next(filter(None, (_durable_call(part, context) for part in inside)), None)


def _mentions(hint: Any, classes: Collection[type]) -> bool:
    """Whether an annotation is one of these classes, or contains one: `Context | None`."""
    return hint in classes or any(_mentions(part, classes) for part in typing.get_args(hint))


def check_function(function: object) -> None:
    """Refuse an object without a name and annotations of its own, such as a `functools.partial` or a text."""
    if not callable(function) or not hasattr(function, "__name__"):
        raise DeclarationError(
            f"A task is a function, not {type(function).__name__}.",
            remedy="Decorate a `def` or `async def` that calls it; give options by name.",
        )


def check_text(label: str, value: object, error: type[ConfigurationError]) -> None:
    """Refuse a name that the databases cannot store; otherwise the error would come with the first job."""
    if value is None:
        return
    if not isinstance(value, str):
        raise error(f"{label}={value!r} is not a string.", remedy="Write it in quotes.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise error(
            f"{label}={value!r} contains a lone surrogate, which no database stores.",
            remedy="Decode the original bytes with their right encoding.",
        ) from None
    if found := _UNPRINTABLE.search(value):
        raise error(
            f"{label}={value!a} contains the control character U+{ord(found[0]):04X}.",
            remedy="Leave it out: names are printed in terminals and logs.",
        )


def check_number(label: str, value: object, error: type[ConfigurationError]) -> None:
    """Refuse a number that a database would change, or would refuse when a job is enqueued."""
    if value is not None and value is not UNSET and not isinstance(value, int):
        raise error(f"{label}={value!r} is not a whole number.", remedy="Write it without quotes or a decimal point.")
    if isinstance(value, int) and value > LARGEST:
        raise error(f"{label}={value} is too large.", remedy=f"Write at most {LARGEST}.")


def unique_rule(
    function: Callable[..., Any], unique: object, unique_for: Duration | None, unique_until: str | None
) -> UniqueRule | None:
    """The options `unique`, `unique_for` and `unique_until` of a task, or DeclarationError."""
    name = getattr(function, "__name__", "")
    if unique is None or unique is False:
        if unique_for is not None or unique_until is not None:
            raise DeclarationError(f"Task {name}: unique_for and unique_until need unique=True.")
        return None
    names = () if unique is True else (unique,) if isinstance(unique, str) else unique
    if (
        not isinstance(names, tuple)
        or not all(isinstance(one, str) for one in names)
        or (unique is not True and not names)
    ):
        raise DeclarationError(
            f"Task {name}: unique={unique!r} names no parameters.",
            remedy='Write unique=True, unique="customer" or unique=("customer", "day").',
        )
    unknown = [one for one in names if one not in inspect.signature(function).parameters]
    if unknown:
        near = difflib.get_close_matches(unknown[0], inspect.signature(function).parameters, n=1)
        raise DeclarationError(
            f"Task {name}: unique names {unknown[0]!r}, which is not a parameter.",
            remedy=f"Did you mean {near[0]!r}?" if near else "",
        )
    if unique_until not in (None, "start"):
        raise DeclarationError(
            f"Task {name}: unique_until={unique_until!r} is unknown.", remedy='Write "start", or leave it out.'
        )
    keep = length("unique_for", unique_for)
    if keep is not None and keep <= timedelta(0):
        raise DeclarationError(f"Task {name}: unique_for must be greater than zero.")
    return UniqueRule(parameters=names, keep=keep, until_start=unique_until == "start")


def check_task_options(name: str, options: TaskOptions) -> None:
    """Refuse what the table's constraints would refuse, with a clear message."""
    check_text(f"Task {name}: queue", options.queue, DeclarationError)
    check_number(f"Task {name}: priority", options.priority, DeclarationError)
    check_number(f"Task {name}: max_attempts", options.max_attempts, DeclarationError)
    if options.priority not in PRIORITIES:
        raise DeclarationError(f"Task {name}: priority={options.priority} is outside 0 (first) to 9 (last).")
    if options.keep_arguments not in (True, False, None):
        raise DeclarationError(f"Task {name}: keep_arguments must be True, False or None.")
    if not options.queue:
        raise DeclarationError(f"Task {name}: a queue needs a name.")
    if isinstance(options.max_attempts, int) and options.max_attempts < 1:
        raise DeclarationError(
            f"Task {name}: with max_attempts={options.max_attempts} it would never run.",
            remedy="Write 1 or more, or None for no limit.",
        )
    if options.timeout is not None and options.timeout <= timedelta(0):
        raise DeclarationError(f"Task {name}: timeout must be greater than zero.")
    if options.lock_timeout is not None and options.lock_timeout < SHORTEST:
        raise DeclarationError(
            f"Task {name}: lock_timeout={format_duration(options.lock_timeout)} is too short for a lock.",
            remedy=f"Write at least {format_duration(SHORTEST)}.",
        )


def declaration_hash(job: NewJob, keys: KeyHash) -> str:
    """A hash of a recurring job's declaration, by which a change in the code is noticed."""
    declared = (job.schedule, job.queue, job.priority, job.max_attempts, job.lock_timeout, job.args, job.headers)
    return keys.of_bytes(msgspec.json.encode((*declared, *job.limits)))[:16]


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def refuse_unknown(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse options that `@app.task` does not have, and suggest the nearest one."""
    known = [
        *inspect.signature(make_schedule).parameters,
        *TaskOptions.__struct_fields__,
        "name",
        "isolation",
        "aliases",
        "limit",
    ]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise DeclarationError(
                f"Task {function.__name__}: @app.task has no option {name!r}.",
                remedy=f"Did you mean {near[0]!r}?" if near else f"Known options: {', '.join(sorted(known))}.",
            )


def former_names(function: Callable[..., Any], aliases: Iterable[str]) -> tuple[str, ...]:
    """The names in `aliases=`. A single text is refused: it would be read as a list of letters."""
    if isinstance(aliases, str):
        raise DeclarationError(
            f"Task {function.__name__}: aliases={aliases!r} is a string, not a list of names.",
            remedy=f"Write aliases=[{aliases!r}].",
        )
    return tuple(aliases)


def length(name: str, value: Duration | None) -> timedelta | None:
    """The duration of an option."""
    if value is None:
        return None
    try:
        return parse_duration(value, name=name)
    except ValueError as error:
        raise DeclarationError(str(error)) from None
