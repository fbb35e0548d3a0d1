"""`reltask enqueue`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
import msgspec

from reltask.app import App
from reltask.cli.show import print_json, print_line
from reltask.cli.target import app_command
from reltask.errors import ArgumentsError, UsageError


@click.command(name="enqueue")
@app_command
@click.argument("task")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--delay", metavar="5m", help="Run it after this delay.")
@click.option("--at", metavar="TIME", help="Run it at this time, such as 2030-01-31T09:00:00+01:00.")
@click.option("--queue", metavar="NAME", help="Use this queue instead of the task's.")
@click.option("--priority", type=int, metavar="0-9", help="Use this priority instead of the task's; 0 runs first.")
@click.option("--key", metavar="TEXT", help="Create the job only if the task has no job with this key.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    app: App,
    *,
    task: str,
    arguments: str,
    delay: str | None,
    at: str | None,
    queue: str | None,
    priority: int | None,
    key: str | None,
    as_json: bool,
) -> None:
    r"""Enqueue a job of TASK in MODULE:app. Arguments are a JSON object: '{"name": "Ada"}'."""
    app.configure(database__retry_attempts=0)
    given = read_object(arguments)
    try:
        producer = app.get_task(task).using(delay=delay, at=_moment(at), queue=queue, priority=priority, key=key)
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        job = producer.enqueue_sync(**given)
    finally:
        app.close()
    if as_json:
        print_json({"id": job.id, "task": job.task, "created": job.created})
    else:
        print_line(f"{job.task} {'enqueued' if job.created else 'already exists'}: {job.id}")


def read_object(text: str) -> dict[str, Any]:
    """The arguments by name. Errors do not quote the text, because it may hold secrets."""
    try:
        given = msgspec.json.decode(text)
    except ValueError as error:
        raise ArgumentsError(f"The arguments are not JSON: {error}.", remedy="""Write '{"name": "Ada"}'.""") from error
    if not isinstance(given, dict):
        raise ArgumentsError("The arguments are not a JSON object.", remedy="""Name each one: '{"name": "Ada"}'.""")
    return given


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--at {text!r} is not a time.", remedy="Write it like 2030-01-31T09:00:00+01:00.") from None
