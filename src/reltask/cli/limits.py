"""`reltask limits`: how many jobs may run at once and start in a time, and how many do."""

from __future__ import annotations

import click
import msgspec

from reltask.app import App
from reltask.cli.show import print_json, print_line, print_table
from reltask.cli.target import COUNT, ListByDefault, with_app_argument, with_app_option
from reltask.errors import UsageError
from reltask.model.limit import LimitView

COLUMNS = ["LIMIT", "RUNNING", "AT MOST", "WAITING", "RATE", "BURST", "TOKENS", "KEYS"]
KEY_COLUMNS = ["KEY", "RUNNING", "WAITING", "TOKENS"]
ANY = "any"


@click.group(name="limits", cls=ListByDefault)
def command() -> None:
    """List limits and how much of each is in use; change one.

    Without a command: list.
    """


@command.command(name="list")
@with_app_argument
def list_(app: App, *, as_json: bool) -> None:
    """List limits: how many jobs run and wait, and how many may run at once and start in a time."""
    limits = app.limits_sync()
    if as_json:
        print_json([msgspec.structs.asdict(limit) for limit in limits])
    else:
        print_table(COLUMNS, [_row(limit) for limit in limits], nothing="No worker has declared a limit.")


@command.command()
@with_app_option
@click.argument("name")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="How many keys to show at most.")
def keys(app: App, *, name: str, limit: int, as_json: bool) -> None:
    """List the keys of a limit, those with the most waiting jobs first: one for each value of `by`."""
    found = app.limit_keys_sync(name, limit=limit)
    if as_json:
        print_json([msgspec.structs.asdict(key) for key in found])
        return
    rows = [[key.key, key.in_use, key.waiting, None if key.tokens is None else round(key.tokens, 1)] for key in found]
    print_table(KEY_COLUMNS, rows, nothing="No job has had this limit yet.")


@command.command()
@with_app_option
@click.argument("name")
@click.option("--running", metavar="N", help="How many may run at once, per key; `any` for any number, 0 for none.")
@click.option("--rate", metavar="N/TIME", help='How many may start in a time, per key: "100/m"; `any` for any number.')
@click.option("--burst", type=COUNT, help="How many may start at once after a pause.")
def change(app: App, *, name: str, running: str | None, rate: str | None, burst: int | None, as_json: bool) -> None:
    """Change a limit for all workers at once.

    Runs are not stopped. The change stays until the declaration in code changes.
    """
    if (running, rate, burst) == (None, None, None):
        raise UsageError("Nothing is to be changed.", remedy="Give --running, --rate or --burst.")
    app.change_limit_sync(
        name,
        running=msgspec.UNSET if running is None else _number(running),
        rate=msgspec.UNSET if rate is None else None if rate == ANY else rate,
        burst=msgspec.UNSET if burst is None else burst,
    )
    (limit,) = [limit for limit in app.limits_sync() if limit.name == name]
    if as_json:
        print_json(msgspec.structs.asdict(limit))
    else:
        print_line(f"Changed limit {name}: running {_any(limit.running)}, rate {_any(limit.rate)}.")


def _number(running: str) -> int | None:
    if running == ANY:
        return None
    if not running.isascii() or not running.isdigit():
        raise UsageError(f"--running {running!r} is not a number.", remedy="Write a whole number, or any.")
    return int(running)


def _row(limit: LimitView) -> list[object]:
    tokens = None if limit.tokens is None else int(limit.tokens)
    numbers = [limit.in_use, _any(limit.running), limit.waiting, _any(limit.rate), limit.burst, tokens, limit.keys]
    return [limit.name, *numbers]


def _any(value: object) -> object:
    return ANY if value is None else value
