"""`reltask exporter`."""

from __future__ import annotations

import threading

import click

from reltask.app import App
from reltask.cli.runner import EXIT_OK
from reltask.cli.show import print_line
from reltask.cli.target import with_app_argument
from reltask.errors import MissingExtra
from reltask.model.connection_url import safe_url

MISSING = MissingExtra("Metrics need prometheus-client.", remedy='Run: pip install "reltask[metrics]"')


@click.command(name="exporter")
@with_app_argument
@click.option("--listen", default="127.0.0.1:9187", show_default=True, metavar="HOST:PORT", help="Where to serve.")
def command(app: App, *, listen: str, as_json: bool) -> int:  # noqa: ARG001 - it is Prometheus's own format
    """Serve metrics that are read from the database to Prometheus. One exporter is enough for all workers."""
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra

        from reltask.telemetry.prometheus import DatabaseMetrics, serve  # noqa: PLC0415
    except ImportError as error:
        raise MISSING from error
    registry = CollectorRegistry()
    registry.register(DatabaseMetrics(app.overview_sync))
    address, close = serve(registry, listen)
    print_line(f"Metrics of {safe_url(app.url)}: {address}")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return EXIT_OK
    finally:
        close()
    return EXIT_OK
