"""`reltask status`."""

from __future__ import annotations

import click
import msgspec

from reltask.app import App
from reltask.cli.show import print_fields, print_json, print_table, text, worker_text
from reltask.cli.target import about_all
from reltask.config import safe_url
from reltask.job import StatusView, WorkerView
from reltask.leadership import MAINTENANCE, LeaseView

SHOWN_WORKERS = 10


@click.command(name="status")
@about_all
def command(app: App, *, as_json: bool) -> None:
    """The whole system on one screen."""
    status, workers, leader = app.status_sync(), app.workers_sync(), _leader(app.leases_sync())
    alive = [worker for worker in workers if worker.state == "alive"]
    if as_json:
        print_json({**msgspec.structs.asdict(status), "workers": alive, "maintenance": leader})
        return
    click.echo(f"{safe_url(app.url)} at {text(status.now)} UTC\n")
    led = f"led by {worker_text(leader)}" if leader else "nobody leads"
    print_fields([*_counts(status), ("maintenance", led)])
    for name, count in sorted(status.unknown.items()):
        click.echo(f"\nNo live worker knows {name}: {count} due.", nl=False)
    click.echo()
    _print_workers(alive)


def _counts(status: StatusView) -> list[tuple[str, object]]:
    return [
        ("workers alive", status.workers_alive),
        ("due", status.due),
        ("running", status.running),
        ("failing", status.failing),
        ("dead", f"{status.dead}{'   see: reltask dead list' if status.dead else ''}"),
        ("expired", f"{status.expired}{'   their locks have ended' if status.expired else ''}"),
        ("paused", status.paused),
        ("waiting", status.ready),
        ("next due", status.next_due),
    ]


def _leader(leases: list[LeaseView]) -> str | None:
    """Who keeps the database in order. Without the lease, nobody in particular."""
    return next((lease.holder for lease in leases if lease.held and lease.name == MAINTENANCE), None)


def _print_workers(workers: list[WorkerView]) -> None:
    rows = [
        (worker_text(worker.id), worker.running, worker.concurrency, worker.queues, worker.heartbeat_at)
        for worker in workers[:SHOWN_WORKERS]
    ]
    print_table(["WORKER", "RUNNING", "OF", "QUEUES", "LAST SEEN"], rows, nothing="No worker is alive.")
    if len(workers) > SHOWN_WORKERS:
        click.echo(f"and {len(workers) - SHOWN_WORKERS} more: reltask workers")
