"""`reltask sql`: every statement is a file that a DBA can read before it runs."""

from __future__ import annotations

import difflib
from importlib.resources import files

import click

from reltask.cli.migrate import dialect_of
from reltask.cli.show import print_json, print_lines
from reltask.cli.target import find_app
from reltask.errors import UsageError
from reltask.model.schema_name import SCHEMA, split_schema
from reltask.stores.migration import Dialect, migrations, schema_scripts
from reltask.stores.statement import read_sql

DIALECTS: tuple[Dialect, ...] = ("postgres", "sqlite", "mssql")


@click.command(name="sql")
@click.argument("verbs", nargs=-1, metavar="[VERB]...")
@click.option("--list", "names_only", is_flag=True, help="Print the names of the statements only.")
@click.option("--all", "everything", is_flag=True, help="Print the tables and every statement.")
@click.option("--dialect", type=click.Choice(DIALECTS), help="The SQL dialect. Default: the database's.")
@click.option("--app", "reference", metavar="MODULE:app", help="Use the database of this app.")
@click.option("--database", metavar="URL", help="Use this database instead of an app's; no password in the URL.")
@click.option("--config", metavar="FILE", help="The settings file. Default: reltask.toml or appsettings.json.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(
    *,
    verbs: tuple[str, ...],
    names_only: bool,
    everything: bool,
    dialect: Dialect | None,
    reference: str | None,
    database: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Print the SQL of the statements named VERB, or of permissions, monitoring and drop. Nothing is sent.

    Without a VERB, print what `reltask migrate` runs on an empty database. The tables are in the schema of the app's
    database; with --dialect, in reltask.
    """
    schema = SCHEMA
    if dialect is None:
        url = find_app(reference, database=database, config=config).url
        dialect, schema = dialect_of(url), split_schema(url)[1]
    scripts = _scripts(dialect, schema, verbs, everything=everything or names_only)
    if names_only:
        scripts = dict.fromkeys(scripts, "")
    if as_json:
        print_json(list(scripts) if names_only else scripts)
        return
    for name, text in scripts.items():
        print_lines(name if names_only else f"-- {name}\n\n{text.strip()}\n")


def _scripts(dialect: Dialect, schema: str, verbs: tuple[str, ...], *, everything: bool) -> dict[str, str]:
    """The chosen files with their texts."""
    tables = {migration.name: migration.sql for migration in migrations(dialect, schema)}
    known = {verb: read_sql(dialect, verb, schema) for verb in statements(dialect)}
    if everything:
        return tables | known
    by_hand = {name.removesuffix(".sql"): sql for name, sql in schema_scripts(dialect, schema) if name not in tables}
    known |= by_hand
    return {verb: known[_known(verb, list(known))] for verb in verbs} or tables


def statements(dialect: Dialect) -> list[str]:
    """The names of all statements of a store."""
    folder = files("reltask.stores") / dialect / "sql"
    return sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))


def _known(verb: str, known: list[str]) -> str:
    if verb not in known:
        near = difflib.get_close_matches(verb, known, n=1)
        raise UsageError(
            f"No statement is called {verb!r}.", remedy=f"Did you mean {near[0]}?" if near else "Run it with --list."
        )
    return verb
