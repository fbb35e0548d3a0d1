"""`reltask config`."""

from __future__ import annotations

import os

import click

from reltask.app import App
from reltask.cli.show import print_json, print_table
from reltask.cli.target import load_app
from reltask.config import render_settings


@click.command(name="config")
@click.argument("reference", metavar="[MODULE:app]", required=False)
@click.option("--database", metavar="URL", help="Show the settings as if --database were given to a command.")
@click.option("--config", metavar="FILE", help="The settings file. Default: reltask.toml or appsettings.json.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(*, reference: str | None, database: str | None, config: str | None, as_json: bool) -> None:
    """Show each setting and where it was set. Passwords are not shown."""
    named = reference or os.environ.get("RELTASK_APP")
    app = load_app(named) if named else App()
    app.configure(config=config, database__url=database)
    rows = render_settings(app.loaded)
    if as_json:
        print_json([{"name": name, "value": value, "origin": origin} for name, value, origin in rows])
    else:
        print_table(["SETTING", "VALUE", "FROM"], rows, nothing="There are no settings.")
