"""Times as the project has them: aware with USE_TZ, and otherwise naive, in TIME_ZONE."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils.timezone import is_naive, make_aware, make_naive


def as_django(when: datetime) -> datetime:
    """A time of reltask's, for the project."""
    local: datetime = when if settings.USE_TZ or is_naive(when) else make_naive(when)
    return local


def as_reltask(when: Any) -> Any:
    """A time of the project's, for reltask, which takes none without a time zone."""
    return make_aware(when) if isinstance(when, datetime) and is_naive(when) else when


def made_at(job_id: UUID) -> datetime:
    """When the job was enqueued: its id begins with the milliseconds since 1970."""
    return as_django(datetime.fromtimestamp((job_id.int >> 80) / 1000, UTC))
