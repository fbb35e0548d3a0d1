"""When the URL of PostgreSQL, or the environment, asks for TLS."""

from __future__ import annotations

import pytest

from reltask.errors import SettingsError
from reltask.stores.postgres.url import read_url


@pytest.mark.parametrize(
    ("url", "tls"),
    [
        ("postgresql://u@localhost/d", False),
        ("postgresql://u@127.0.0.1:5432/d", False),
        ("postgresql://u@[::1]:5432/d", False),
        ("postgresql:///d?host=/var/run/postgresql", False),
        ("postgresql://u@%2Fvar%2Frun%2Fpostgresql/d", False),
        ("postgresql://u@db.example.com/d", True),
        ("postgresql:///d?host=db.example.com", True),
        ("postgresql://u@db.example.com/d?host=localhost", True),
        ("postgresql://u@10.0.0.7:5432/d", True),
        ("postgresql://u@localhost,db.example.com/d", True),
        ("postgresql://u@db.example.com/d?sslmode=disable", False),
        ("postgresql://u@db.example.com/d?sslmode=", True),
    ],
)
def test_tls_is_required_off_this_machine_unless_the_url_chooses(url: str, *, tls: bool) -> None:
    """By default nothing leaves the machine in clear text, or for a server that is not verified."""
    assert ("sslmode=verify-full" in read_url(url).dsn) is tls


ENVIRONMENT = ("PGHOST", "PGSERVICE", "PGSSLMODE")


@pytest.mark.parametrize(
    ("url", "environment", "tls"),
    [
        ("postgresql:///d", {}, False),
        ("postgresql:///d", {"PGHOST": "localhost,/var/run/postgresql"}, False),
        ("postgresql:///d", {"PGHOST": "db.example.com"}, True),
        ("postgresql://u@/d?host=", {"PGHOST": "db.example.com:5432,localhost"}, True),
        ("postgresql:///d?sslmode=disable", {"PGHOST": "db.example.com"}, False),
        ("postgresql:///d?sslmode=", {"PGHOST": "db.example.com"}, True),
        ("postgresql://localhost/d", {"PGHOST": "db.example.com", "PGSERVICE": "mine"}, False),
        ("postgresql:///d", {"PGSERVICE": "mine"}, True),
        ("postgresql:///d", {"PGHOST": "db.example.com", "PGSSLMODE": "prefer"}, True),
        (
            "postgresql:///d",
            {"PGHOST": "db.example.com", "PGSSLMODE": "verify-full"},
            False,
        ),  # the driver's option, and more
    ],
)
def test_host_from_the_environment_counts_like_one_in_the_url(
    monkeypatch: pytest.MonkeyPatch, url: str, environment: dict[str, str], *, tls: bool
) -> None:
    """If the URL names no host, the environment may.

    Its TLS settings count if they are stricter than reltask's.
    """
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("sslmode=verify-full" in read_url(url).dsn) is tls


def test_service_needs_an_sslmode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service file can lead anywhere, and may ask for stricter TLS. A token is never sent there."""
    monkeypatch.setenv("PGHOST", "db.example.com")
    with pytest.raises(SettingsError, match="names a service"):
        read_url("postgresql:///d?service=mine")
    assert read_url("postgresql:///d?service=mine&sslmode=verify-full").tls_context() is None
    with pytest.raises(SettingsError, match="names no server"):
        read_url("postgresql:///d?service=mine&auth=entra")
