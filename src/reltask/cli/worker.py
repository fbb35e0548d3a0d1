"""`reltask worker`."""

from __future__ import annotations

import socket

import click

from reltask.app import App
from reltask.cli.runner import EXIT_ERROR, EXIT_OK, run_worker
from reltask.cli.show import print_line
from reltask.cli.target import app_command
from reltask.errors import MissingExtra


@click.command(name="worker")
@app_command
@click.option("--queues", metavar="A,B", help="The queues to serve.")
@click.option("--concurrency", metavar="N", help="How many jobs run at the same time.")
@click.option("--name", metavar="NAME", help="The first part of the worker's id.")
@click.option("--poll", metavar="5s", help="The longest sleep between two polls.")
@click.option("--once", is_flag=True, help="Run the jobs that are due, then exit: for cron, CI and batch hosts.")
@click.option(
    "--health", is_flag=True, help="Run nothing: exit with 0 if a worker of this host is alive by the database, else 1."
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text, json, or auto: text on a terminal, JSON otherwise.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve this worker's metrics to Prometheus: 127.0.0.1:9090.")
@click.option("--no-uvloop", is_flag=True, help="Use Python's own event loop even if uvloop is installed.")
def command(
    app: App,
    *,
    queues: str | None,
    concurrency: str | None,
    name: str | None,
    poll: str | None,
    once: bool,
    health: bool,
    log_level: str | None,
    log_format: str | None,
    metrics: str | None,
    no_uvloop: bool,
) -> int:
    """Run a worker of MODULE:app until SIGTERM or Ctrl+C.

    After the first signal, running jobs may finish within worker.shutdown_grace; a second signal stops them now. All
    other settings come from the environment and the settings file: see `reltask config`.
    """
    if health:
        return _health(app)
    app.configure(
        worker__queues=queues,
        worker__concurrency=concurrency,
        worker__name=name,
        worker__poll=poll,
        log__level=log_level,
        log__format=log_format,
    )
    if metrics is None:
        return run_worker(app, once=once, uvloop=not no_uvloop)
    try:
        from reltask.telemetry.prometheus import WorkerMetrics, serve  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra("Metrics need prometheus-client.", remedy='Run: pip install "reltask[metrics]"') from error
    counted = WorkerMetrics()
    app.subscribe(counted)
    _, close = serve(counted.registry, metrics)
    try:
        return run_worker(app, once=once, uvloop=not no_uvloop)
    finally:
        close()


def _health(app: App) -> int:
    """For probes of containers, where a host has one worker: whether the database has seen its sign of life."""
    app.configure(database__retry_attempts=0)
    host = socket.gethostname()
    try:
        alive = [worker for worker in app.workers_sync() if worker.host == host and worker.state == "alive"]
    finally:
        app.close()
    print_line(f"{len(alive)} of this host's workers {'is' if len(alive) == 1 else 'are'} alive.")
    return EXIT_OK if alive else EXIT_ERROR
