"""`reltask queues` and `reltask tasks`: which there are, which are paused; pause and resume one."""

from __future__ import annotations

import click

from reltask.app import App
from reltask.cli.show import print_json, print_line, print_table, text
from reltask.cli.target import ListByDefault, with_app_argument, with_app_option
from reltask.model.control import PauseKind, PauseView


def pausing(kind: PauseKind) -> click.Group:
    """The commands for queues, or those for tasks."""
    group = ListByDefault(
        name=f"{kind}s",
        help=f"List {kind}s; pause or resume one. Workers claim no job of a paused {kind}. Without a command: list.",
    )

    @group.command(name="list", help=f"List the {kind}s that live workers serve or that are paused.")
    @with_app_argument
    def list_(app: App, *, as_json: bool) -> None:
        pauses = {pause.name: pause for pause in app.pauses_sync() if pause.kind is kind}
        served: dict[str, int] = dict.fromkeys(pauses, 0)
        for worker in app.workers_sync():
            names = worker.queues if kind is PauseKind.QUEUE else worker.tasks
            for name in names if worker.state == "alive" else ():
                served[name] = served.get(name, 0) + 1
        if as_json:
            shown = [{"name": name, "workers": served[name], "paused": pauses.get(name)} for name in sorted(served)]
            print_json(shown)
            return
        columns = [kind.upper(), "WORKERS", "PAUSED SINCE (UTC)", "BY", "REASON", "DUE"]
        rows = [[name, served[name], *_cells(pauses.get(name))] for name in sorted(served)]
        print_table(columns, rows, nothing=f"No live worker serves a {kind}, and none is paused.")

    @group.command(help=f"Pause a {kind}: no worker claims a job of it; what runs goes on, as does enqueueing.")
    @with_app_option
    @click.argument("name")
    @click.option("--reason", metavar="TEXT", help="Why; shown wherever the pause is.")
    @click.option("--by", metavar="NAME", help="Who; default: this user and host.")
    def pause(app: App, *, name: str, reason: str | None, by: str | None, as_json: bool) -> None:
        queue, task = (name, None) if kind is PauseKind.QUEUE else (None, name)
        is_new = app.pause_sync(queue=queue, task=task, reason=reason, by=by)
        view = next((found for found in app.pauses_sync() if found.kind is kind and found.name == name), None)
        if as_json:
            print_json({"kind": kind, "name": name, "changed": is_new, "pause": view})
        elif view is not None:
            print_line(pause_text(view) if is_new else f"Nothing was changed. {pause_text(view)}")

    @group.command(help=f"Resume a paused {kind}, and wake the workers.")
    @with_app_option
    @click.argument("name")
    def resume(app: App, *, name: str, as_json: bool) -> None:
        queue, task = (name, None) if kind is PauseKind.QUEUE else (None, name)
        was_paused = app.resume_sync(queue=queue, task=task)
        if as_json:
            print_json({"kind": kind, "name": name, "changed": was_paused})
        else:
            label = f"{kind.capitalize()} {name}"
            print_line(f"{label} is resumed." if was_paused else f"{label} was not paused; nothing was changed.")

    return group


def _cells(pause: PauseView | None) -> list[object]:
    if pause is None:
        return [None] * 4
    return [pause.paused_at, pause.paused_by, pause.reason, pause.due]


def pause_text(pause: PauseView) -> str:
    """A pause in one sentence."""
    reason = f": {pause.reason}" if pause.reason else ""
    since = f"since {text(pause.paused_at)} UTC by {pause.paused_by}"
    return f"{pause.kind.capitalize()} {pause.name} is paused {since}{reason}. Due and waiting: {pause.due}."
