"""`reltask dashboard` and `reltask exporter`: what they refuse, and that they serve."""

from __future__ import annotations

import signal
import urllib.request

import pytest

from tests.cli.project import Project


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "shop.example"])
def test_the_dashboard_does_not_start_where_others_reach_it(project: Project, host: str) -> None:
    """Off loopback it needs a function that says who may look; the remedy names the option."""
    result = project.run("dashboard", project.app, "--host", host, "--port", "0")
    assert result.code == 2
    assert "--authorize" in result.err


def test_the_function_alone_decides_who_may_act(project: Project) -> None:
    """Both would leave open which of them counts."""
    result = project.run("dashboard", project.app, "--authorize", "x:y", "--allow-actions")
    assert result.code == 2
    assert "with --authorize the function decides" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["dashboard", "--port", "0"], "may look"),
        (["dashboard", "--port", "0", "--allow-actions"], "may act"),
        (["exporter", "--listen", "127.0.0.1:0"], "reltask_up 1.0"),
    ],
)
def test_it_serves_on_this_machine(project: Project, arguments: list[str], shown: str) -> None:
    """The first line names the address, which answers. The dashboard is read-only unless actions are allowed."""
    project.enqueue("hello", name="Ada")
    process = project.start(arguments[0], project.app, *arguments[1:])
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    with urllib.request.urlopen(address, timeout=20) as answer:
        assert shown in answer.read().decode()


@pytest.mark.slow
def test_the_dashboard_ends_while_an_overview_is_open(project: Project) -> None:
    """Ctrl+C ends it at once, although a browser keeps its stream open."""
    process = project.start("dashboard", project.app, "--port", "0")
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    with urllib.request.urlopen(f"{address}live", timeout=20) as stream:
        assert stream.readline() == b"retry: 3000\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        stream.read()
