"""The reference: every public name with its signature and its docstring, in the order of docs/api.md."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import operator
import re
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, get_overloads

import msgspec

import reltask
import reltask.events
import reltask.testing

API = Path(__file__).parents[2] / "docs" / "api.md"
MADE_BY_USERS = {"Again", "App", "Backoff", "Cancel", "Limit", "Retry", "Signal", "Snooze", "testing.TestKit"}
"""Of the classes that are no plain values, those whose constructor is for users; reltask makes the others."""
INTERNAL = {
    "App": {"declarations", "import_tasks", "loaded", "number_shards", "shard_urls"},
    "Limit": {"rule"},
    "Signal": {"decode", "encode"},
    "SyncTransaction": {"guard_lease", "result"},
    "TaskTransaction": {
        *("enqueue_jobs", "enqueue_unique", "guard_lease", "placed", "read_keys", "read_unique", "replace_job"),
        *("send_signals", "wait_for"),
    },
}
"""Methods of public classes that other modules call, and users do not."""
WIDTH = 88
"""A longer signature has a line for each parameter."""
_MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=\w)")
_AWAITED = re.compile(r"Coroutine\[Any, Any, (.*)\]")
_QUOTED = re.compile(r"(`[^`]*`)")


def reference() -> str:
    """The page."""
    parts = [
        "# API reference\n",
        "Every public name, from its docstring. [Public names](api.md) is the same list, one line for each. Methods",
        "marked `async` are awaited; where a synchronous twin exists, it is named below the signature.\n",
    ]
    for section in API.read_text(encoding="utf-8").split("\n## ")[1:]:
        parts.append(f"## {section.partition(chr(10))[0]}\n")
        for name in re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE):
            parts += _entry(name, operator.attrgetter(name)(reltask))
    return "\n".join(parts)


def _entry(name: str, thing: Any) -> list[str]:
    parts = [f"### {_escaped(name)}\n"]
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        parts.append(_code("\n".join(f"{name}.{member.name} = {member.value!r}" for member in thing)))
    elif inspect.isfunction(thing) or _is_called(name, thing):
        parts.append(_code(signature(name, thing)))
    if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
        parts.append(_markdown(inspect.getdoc(thing) or ""))
    if inspect.isclass(thing):
        facts = [f"{field}: {_annotation(kind)}" for field, kind in _annotations(thing).items()]
        if facts and not _is_called(name, thing):
            parts.append(_code("\n".join(facts)))
        described = "".join(f"- `{field}`: {_markdown(text)}" for field, text in _fields(thing))
        parts += [described] if described else []
        parts += _members(name, thing)
    return parts


def _is_called(name: str, thing: Any) -> bool:
    """Whether users call it to make a value, or its parameters are the fields that they read."""
    if not inspect.isclass(thing) or issubclass(thing, enum.Enum):
        return False
    is_value = issubclass(thing, msgspec.Struct) and not any(each.startswith("_") for each in thing.__struct_fields__)
    return name in MADE_BY_USERS or is_value


def _members(name: str, thing: type) -> Iterator[str]:
    """The methods and properties of a class; those of a base that has an entry of its own stay there."""
    public = {getattr(reltask, each) for each in reltask.__all__ if each != "__version__"}
    seen: dict[str, Any] = {}
    inherited = [base for base in thing.__mro__[1:] if base in public]
    if inherited:
        base_name = inherited[0].__name__
        yield f"It also has what [{base_name}](#{base_name.lower()}) has.\n"
    for base in thing.__mro__:
        if base not in inherited and base.__module__.startswith("reltask."):
            seen |= {member: value for member, value in vars(base).items() if member not in seen}
    for member, value in seen.items():
        function = _function(value)
        if member.startswith("_") or member in INTERNAL.get(name, ()) or function is None or not function.__doc__:
            continue
        if member.endswith("_sync") and member.removesuffix("_sync") in seen:
            continue
        yield f"#### {_escaped(f'{name}.{member}')}\n"
        if isinstance(value, (property, cached_property)):
            yield _code(f"{name}.{member}: {_annotation(inspect.signature(function).return_annotation)}")
        else:
            yield _code(signature(f"{name}.{member}", function))
        if f"{member}_sync" in seen:
            yield f"Synchronous: `{member}_sync`.\n"
        yield _markdown(inspect.getdoc(function) or "")


def _function(value: Any) -> Any:
    """The function behind a method or a property, or None."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, cached_property):
        return value.func
    if isinstance(value, (classmethod, staticmethod)):
        return value.__func__
    return value if inspect.isfunction(value) else None


def _annotations(thing: type) -> dict[str, Any]:
    """What its instances have, as it is declared in the class itself."""
    declared = inspect.get_annotations(thing)
    return {name: kind for name, kind in declared.items() if name[0] != "_" and "ClassVar" not in str(kind)}


def _fields(thing: type) -> Iterator[tuple[str, str]]:
    """The documented fields of a class: those with a text below them."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, text in itertools.pairwise(statements):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                if not name.startswith("_"):
                    yield name, inspect.cleandoc(said)


def signature(name: str, thing: Any) -> str:
    """As a reader would write the call; of several overloads the longest."""
    overloads = get_overloads(thing) if inspect.isfunction(thing) else []
    chosen = max([thing, *overloads], key=lambda each: len(inspect.signature(each).parameters))
    found = inspect.signature(chosen)
    parameters = [each for each in found.parameters.values() if each.name not in {"self", "cls"}]
    shown = [re.sub(r"<(.*?)>", r"\1", str(_plain(each))) for each in parameters]
    if "*" not in "".join(each[:1] for each in shown):
        keyword = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
        if keyword is not None:
            shown.insert(keyword, "*")
    returned = _annotation(found.return_annotation)
    awaited = _AWAITED.fullmatch(returned)
    end = "" if inspect.isclass(thing) else f" -> {awaited[1] if awaited else returned}"
    start = f"async {name}" if awaited or inspect.iscoroutinefunction(thing) else name
    line = f"{start}({', '.join(shown)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{start}(", *(f"    {each}," for each in shown), f"){end}"])


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is parameter.empty:
        return parameter
    default = parameter.default
    if isinstance(default, timedelta):
        default = _Text(_MODULE.sub("", repr(default)))
    return parameter.replace(annotation=_Text(_annotation(parameter.annotation)), default=default)


class _Text:
    """Shown as it is, without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _annotation(annotation: Any) -> str:
    """A type without the names of modules."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULE.sub("", text)


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _markdown(text: str) -> str:
    """A docstring as Markdown: its pictures, which are drawn, stay as they are, and so do code and `names`."""
    if any(character in text for character in "│─►└├"):
        return f"```text\n{text}\n```\n"
    return "\n".join(line if line.startswith("    ") else _escaped(line) for line in text.splitlines()) + "\n"


def _escaped(text: str) -> str:
    parts = _QUOTED.split(text)
    return "".join(part if part.startswith("`") else re.sub(r"([_*<\[])", r"\\\1", part) for part in parts)
