"""What an error of PostgreSQL means: whether sending the statement again can help."""

from __future__ import annotations

import asyncpg
import pytest

from reltask.errors import AmbiguousError, PermanentError, ReltaskError, TransientError
from reltask.stores.postgres.errors import statement_failed
from reltask.stores.postgres.values import from_payload


@pytest.mark.parametrize(
    ("error", "kind"),
    [(asyncpg.FeatureNotSupportedError, PermanentError), (asyncpg.InvalidCachedStatementError, TransientError)],
)
def test_a_missing_feature_is_permanent_and_an_outdated_plan_is_not(
    error: type[asyncpg.PostgresError], kind: type[ReltaskError]
) -> None:
    """Both are SQLSTATE 0A000: a plan is prepared again, a feature does not appear within a minute."""
    assert type(statement_failed(error("as PostgreSQL says"), verb="claim_jobs", writes=True)) is kind


@pytest.mark.parametrize("payload", ["9" * 30, "9" * 5_000, "-" + "9" * 30, "", "now", "٣x"])
def test_a_signal_that_names_no_possible_time_means_now(payload: str) -> None:
    """Any program can send a notification: it may cost a look, and never an error."""
    assert from_payload(payload) is None


@pytest.mark.parametrize("severity", ["FATAL", "PANIC"])
def test_an_error_that_ends_the_session_leaves_a_write_in_doubt(severity: str) -> None:
    """Whatever its SQLSTATE says: the answer may be about the session, and not about the statement."""
    error = asyncpg.InternalServerError("as PostgreSQL says")
    error.severity_en = severity
    assert type(statement_failed(error, verb="claim_jobs", writes=True)) is AmbiguousError
    assert type(statement_failed(error, verb="read_holds", writes=False)) is PermanentError
