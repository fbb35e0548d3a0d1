"""The terminal of these tests must be able to fail."""

from __future__ import annotations

import pytest

from tests.docs.terminal import Command, Terminal, commands, seen

OUTPUT = "WORKER     OF\none_4711   10\ntwo_4712   10\n"


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([], True),
        (["one_4711 10"], True),
        (["…4712…"], True),
        (["one_…", "…", "two_…"], True),
        (["two_…", "one_…"], False),
        (["one_4711"], False),
        (["one_…20"], False),
        (["one_.711 10"], False),
        (["one_…two_…"], False),
    ],
)
def test_seen(expected: list[str], found: bool) -> None:
    """Lines are whole, in order, and literal but for … and the number of spaces."""
    assert seen(expected, OUTPUT) is found


def test_commands_are_distinguished_from_output() -> None:
    """What follows a command is what it must show."""
    assert commands("$ a\nx\n\n$ b\n") == [Command("a", ["x"]), Command("b", [])]


@pytest.mark.slow
@pytest.mark.parametrize("line", ["python -c 'raise SystemExit(1)'", "python -c 'print(2)'"])
def test_wrong_status_or_output_is_noticed(terminal: Terminal, line: str) -> None:
    """A command that fails, or that shows something else, fails the page."""
    with pytest.raises(AssertionError):
        terminal.type(Command(line, ["1"]))
