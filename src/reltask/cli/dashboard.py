"""`reltask dashboard`."""

from __future__ import annotations

import importlib
import os
from shlex import quote
from socket import socket
from typing import Any

import click

from reltask.app import App
from reltask.cli.runner import EXIT_OK
from reltask.cli.show import print_line
from reltask.cli.target import with_app_argument_or_new_file
from reltask.errors import ConfigurationError, MissingExtra, UsageError
from reltask.model.connection_url import safe_url


@click.command(name="dashboard")
@with_app_argument_or_new_file
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8321, show_default=True, type=click.IntRange(0, 65535), help="The port; 0: a free one.")
@click.option("--allow-actions", is_flag=True, help="Allow actions from this machine, not only reading.")
@click.option("--show-values", is_flag=True, help="Show arguments, results and values of steps.")
@click.option("--authorize", metavar="MODULE:FUNCTION", help="Who may look and act; needed off loopback.")
@click.pass_context
def command(
    ctx: click.Context,
    app: App,
    *,
    host: str,
    port: int,
    allow_actions: bool,
    show_values: bool,
    authorize: str | None,
    as_json: bool,  # noqa: ARG001 - it is a page
) -> int:
    """Serve the dashboard of MODULE:app until Ctrl+C.

    It answers only to this machine, unless --authorize names a function that says who may look ("read") and who may
    act ("act").
    """
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from reltask.web.access import is_loopback  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra(
            "The dashboard needs starlette, jinja2 and uvicorn.", remedy='Run: pip install "reltask[web]"'
        ) from error
    if authorize is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, and nothing says who may look.",
            remedy="Pass --authorize MODULE:FUNCTION, or listen on 127.0.0.1 and use an SSH tunnel.",
        )
    if authorize is not None and allow_actions:
        raise UsageError(
            "--allow-actions is for this machine alone; with --authorize the function decides.",
            remedy='Let it answer "act".',
        )
    dashboard = app._make_dashboard(  # noqa: SLF001 - the only caller that may give this machine more
        None if authorize is None else _function(authorize),
        show_values=show_values,
        local="act" if allow_actions else "read",
        reference=ctx.params.get("reference")
        or os.environ.get("RELTASK_APP")
        or f"--database {quote(safe_url(app.url))}",
    )
    config = uvicorn.Config(dashboard, host=host, port=port, log_level="warning", lifespan="off", server_header=False)
    config.load()
    listener = config.bind_socket()
    listener.listen()  # the address is printed next: a browser that is faster than the server waits
    may = "read and act" if allow_actions else "read only" if authorize is None else "as authorized"
    print_line(f"Dashboard of {safe_url(app.url)}, {may}: http://{host}:{listener.getsockname()[1]}/")

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket] | None = None) -> None:
            dashboard.live.end()  # it waits for open answers
            await super().shutdown(sockets)

    Server(config).run(sockets=[listener])
    return EXIT_OK


def _function(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"{reference!r} does not name a function.", remedy="Write MODULE:FUNCTION, such as shop.web:authorize."
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{reference!r} is not a function.")
    return found
