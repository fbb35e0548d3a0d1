"""The doctor's rules: from facts to findings, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reltask.model.doctor import Facts, Finding, Level, diagnose, is_sound

SETTINGS = {
    "sqlite": {"journal_mode": "wal", "filesystem": "ext4"},
    "postgres": {
        "fsync": "on",
        "synchronous_commit": "on",
        "transaction_isolation": "read committed",
        "search_path": '"$user", public',
        "open_schemas": "",
    },
    "mssql": {"read_committed_snapshot": "1", "optimized_locking": "1", "lock_escalation": "DISABLE"},
}


def facts(database: str = "postgres", *, settings: dict[str, str] | None = None, **others: Any) -> Facts:
    """A sound database, except for what the test sets."""
    sound: dict[str, Any] = {
        "database": database,
        "server": "Server 1",
        "user": "ada",
        "now": datetime(2026, 1, 1, tzinfo=UTC),
        "schema_version": 4,
        "oldest_version": 4,
        "spoken_version": 4,
        "may": frozenset({"run", "enqueue", "read"}),
        "connections": 10,
        "connection_limit": 100,
        "oldest_transaction": timedelta(0),
        "settings": {**SETTINGS[database], **(settings or {})},
    }
    return Facts(**{**sound, **others})


def found(check: str, given: Facts, *, skew: float = 0) -> list[Finding]:
    return [finding for finding in diagnose(given, skew=timedelta(seconds=skew)) if finding.check == check]


@pytest.mark.parametrize("database", SETTINGS)
def test_a_sound_database(database: str) -> None:
    """Everything is ok, and there is nothing to do."""
    findings = diagnose(facts(database), skew=timedelta(0))
    assert is_sound(findings)
    assert {(finding.level, finding.remedy) for finding in findings} == {(Level.OK, "")}


PROBLEMS: list[tuple[str, Facts, str, str]] = [
    ("primary", facts(primary=False), "read-only replica", "the primary"),
    ("primary", facts(writable=False), "cannot write", "default_transaction_read_only"),
    ("primary", facts("mssql", writable=False), "cannot write", "application_intent"),
    ("primary", facts("sqlite", writable=False), "cannot write", "write permission"),
    ("schema", facts(schema_version=0), "no reltask tables", "reltask migrate"),
    ("schema", facts(schema_version=3), "needs 4", "reltask migrate"),
    ("schema", facts(schema_version=5, oldest_version=5), "knows 4", "Upgrade reltask"),
    ("permissions", facts(may=frozenset()), "has no permissions", "reltask_run"),
    ("connections", facts(connections=96), "96 of 100", "pool_size"),
    ("durability", facts(settings={"fsync": "off"}), "fsync is off", "fsync = on"),
    ("schemas", facts(settings={"search_path": "public, pg_catalog"}), "functions in public", "alter role"),
    ("isolation", facts(settings={"transaction_isolation": "serializable"}), "serializable", "alter role"),
    ("journal", facts("sqlite", settings={"journal_mode": "delete"}), "journal mode delete", "local disk"),
    ("filesystem", facts("sqlite", settings={"filesystem": "nfs4"}), "nfs4", "local disk"),
    ("tier", facts("mssql", settings={"worker_percent": "97.5"}), "98 %", "pool_size"),
]
NOTES: list[tuple[str, Facts, str, str]] = [
    ("permissions", facts(may=frozenset({"enqueue"})), "may only enqueue", "reltask_run"),
    ("connections", facts(connections=80), "80 of 100", "pool_size"),
    ("transactions", facts(oldest_transaction=timedelta(hours=2), oldest_owner="psql"), "of psql.*120 min", "end it"),
    ("durability", facts(settings={"synchronous_commit": "off"}), "run again", "synchronous_commit"),
    ("snapshot", facts("mssql", settings={"read_committed_snapshot": "0"}), "is off", "ALTER DATABASE"),
    ("escalation", facts("mssql", settings={"lock_escalation": "TABLE"}), "whole table", "LOCK_ESCALATION"),
]


@pytest.mark.parametrize(("check", "given", "text", "remedy"), PROBLEMS)
def test_a_problem(check: str, given: Facts, text: str, remedy: str) -> None:
    """Something will not work: the finding says what, and what to do, and the result is not ok."""
    findings = diagnose(given, skew=timedelta(0))
    (finding,) = (one for one in findings if one.check == check)
    assert (finding.level, is_sound(findings)) == (Level.PROBLEM, False)
    assert text in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize(("check", "given", "text", "remedy"), NOTES)
def test_a_note(check: str, given: Facts, text: str, remedy: str) -> None:
    """It works, but an operator should know."""
    findings = diagnose(given, skew=timedelta(0))
    (finding,) = (one for one in findings if one.check == check)
    assert (finding.level, is_sound(findings)) == (Level.NOTE, True)
    assert all(word in finding.text for word in text.split(".*"))
    assert remedy in finding.remedy


@pytest.mark.parametrize(("skew", "level"), [(1.9, "ok"), (-1.9, "ok"), (30, "note"), (-30, "note")])
def test_clocks(skew: float, level: str) -> None:
    """A difference is reported from two seconds on, with its direction.

    It decides nothing, so it is no problem.
    """
    (finding,) = found("clock", facts(), skew=skew)
    assert finding.level == level
    if level == "note":
        assert f"30 s {'ahead of' if skew > 0 else 'behind'}" in finding.text


def test_unreadable_facts_are_not_judged() -> None:
    """A user without rights on the server's views gets no finding about them."""
    given = facts("mssql", connections=None, oldest_transaction=None)
    assert [found(check, given) for check in ("connections", "transactions")] == [[], []]


def test_limits_of_a_tier() -> None:
    """The small tiers of Azure are named with their limits."""
    (finding,) = found("tier", facts("mssql", settings={"service_objective": "Basic"}))
    assert (finding.level, "30 concurrent requests" in finding.text) == (Level.OK, True)
