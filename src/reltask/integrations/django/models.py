"""reltask's own tables as Django models: read by the results and the admin pages, never migrated or written by them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections, models

from reltask.integrations.django.project import database_of, main_alias
from reltask.integrations.django.times import as_django, as_reltask

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VENDOR = connections[database_of(main_alias())].vendor


def table(name: str) -> str:
    """A table's name, quoted where it has a schema."""
    return f"reltask_{name}" if _VENDOR == "sqlite" else f'"reltask"."{name}"'


class Moment(models.DateTimeField):
    """A time: on SQLite microseconds since 1970."""

    def get_internal_type(self) -> str:
        return "BigIntegerField" if _VENDOR == "sqlite" else super().get_internal_type()

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> datetime | None:
        return (
            as_django(_EPOCH + timedelta(microseconds=value)) if isinstance(value, int) else value and as_django(value)
        )

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if _VENDOR == "sqlite" and isinstance(value, datetime):
            return (as_reltask(value) - _EPOCH) // timedelta(microseconds=1)
        return super().get_db_prep_value(value, connection, prepared)


class Id(models.UUIDField):
    """A job's id: on SQLite text with hyphens."""

    def get_internal_type(self) -> str:
        return "TextField" if _VENDOR == "sqlite" else super().get_internal_type()

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> UUID | None:
        return UUID(value) if isinstance(value, str) else value

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if _VENDOR == "sqlite":
            return None if value is None else str(self.to_python(value))
        return super().get_db_prep_value(value, connection, prepared)


class Document(models.TextField):
    """A JSON value, decoded: by PostgreSQL's drivers, or here."""

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> Any:
        return json.loads(value) if isinstance(value, str) and _VENDOR != "postgresql" else value


class Job(models.Model):
    """What is due, and which worker holds it."""

    id = Id(primary_key=True, editable=False)
    task = models.TextField()
    key = models.TextField(null=True)
    queue = models.TextField()
    priority = models.SmallIntegerField()
    args = Document()
    headers = Document(null=True)
    schedule = models.TextField(null=True)
    created_at = Moment()
    slot_no = models.BigIntegerField()
    due_at = Moment()
    attempt = models.IntegerField()
    max_attempts = models.IntegerField(null=True)
    paused_at = Moment(null=True)
    dead_at = Moment(null=True)
    suspended = models.BooleanField()
    locked_by = models.TextField(null=True)
    locked_at = Moment(null=True)
    heartbeat_at = Moment(null=True)
    fence = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = table("jobs")
        ordering = ("due_at",)
        permissions = (("operate_job", "Can retry, run, pause, resume and discard jobs"),)

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class DeadLetter(Job):
    """A job that has used up its attempts."""

    class Meta:
        proxy = True
        verbose_name = "dead letter"


class Run(models.Model):
    """The ledger: one row per run that has ended."""

    job_id = Id(primary_key=True)  # with fence; Django's admin needs one column
    fence = models.BigIntegerField()
    slot_no = models.BigIntegerField()
    task = models.TextField()
    queue = models.TextField()
    worker = models.TextField(null=True)
    attempt = models.IntegerField()
    due_at = Moment()
    claimed_at = Moment(null=True)
    finished_at = Moment()
    outcome = models.TextField()
    error = models.TextField(null=True)
    result = Document(null=True)
    args = Document(null=True)
    headers = Document(null=True)

    class Meta:
        managed = False
        db_table = table("runs")
        ordering = ("-finished_at",)

    def __str__(self) -> str:
        return f"{self.task} {self.job_id}, fence {self.fence}"
