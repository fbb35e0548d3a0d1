"""reltask's tables, from the scripts that `reltask migrate` runs. They can be run again."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from reltask.integrations.django.models import Id, table
from reltask.integrations.django.project import aliases, database_of
from reltask.stores.migration import migrations as scripts

UP_TO = 6
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres", "microsoft": "mssql"}


def create(_apps: Any, schema_editor: Any) -> None:
    """Run the scripts on the database that holds the jobs."""
    connection = schema_editor.connection
    if connection.alias not in map(database_of, aliases()):
        return
    for script in scripts(DIALECTS[connection.vendor]):
        if script.version <= UP_TO:
            run(connection, script.sql)


def run(connection: Any, script: str) -> None:
    """All statements of a script, through the driver: Django would read its per cent signs as parameters."""
    connection.ensure_connection()
    if connection.vendor == "sqlite":
        connection.connection.executescript(script)
        return
    for batch in script.split("\nGO\n") if connection.vendor == "microsoft" else [script]:
        with connection.connection.cursor() as cursor:
            cursor.execute(batch)


class Migration(migrations.Migration):
    """The schema of version 6."""

    initial = True
    atomic = False
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.RunPython(create, migrations.RunPython.noop),
        migrations.CreateModel(
            name="Job",
            fields=[("id", Id(editable=False, primary_key=True))],
            options={
                "managed": False,
                "db_table": table("jobs"),
                "ordering": ("due_at",),
                "permissions": (("operate_job", "Can retry, run, pause, resume and discard jobs"),),
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[("job_id", Id(primary_key=True))],
            options={"managed": False, "db_table": table("runs"), "ordering": ("-finished_at",)},
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            bases=("reltask.job",),
            options={"proxy": True, "verbose_name": "dead letter", "indexes": [], "constraints": []},
        ),
    ]
