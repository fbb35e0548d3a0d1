"""Makes the store for a URL. Drivers are imported only here, and only the one that is needed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from reltask.config import IN_CODE, Loaded
from reltask.errors import ConfigurationError, ReltaskError
from reltask.model.clock import Clock
from reltask.model.settings import DatabaseSettings
from reltask.resilience import Policy
from reltask.stores.store import Store

Now = Callable[[], datetime]
"""The database's clock, replaced in tests."""


def make_store(
    url: str,
    settings: DatabaseSettings,
    *,
    clock: Clock,
    rng: random.Random,
    now: Now | None = None,
    inline: bool = False,
    watch: bool = True,
    on_circuit: Callable[[str], None] | None = None,
    on_retry: Callable[[str, ReltaskError, float], None] | None = None,
    credential: Any = None,
) -> Store:
    """An unopened store. `inline`: it may block its caller's thread. `watch`: it notices writes of others."""
    scheme = _scheme(url)
    if credential is not None and scheme == "sqlite":
        raise ConfigurationError(
            "App(credential=…) is for mssql:// and postgresql:// URLs; this URL is sqlite://.",
            remedy="Remove the credential, or check the URL.",
        )
    policy = Policy(
        clock=clock,
        rng=rng,
        attempts=settings.retry_attempts,
        first=settings.retry_first.total_seconds(),
        breaker_failures=settings.breaker_failures,
        breaker_reset=settings.breaker_reset.total_seconds(),
        on_change=on_circuit,
        on_retry=on_retry,
    )
    if scheme == "sqlite":
        return _sqlite(url, settings, policy, now, inline=inline, watch=watch, clock=clock)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, settings, policy, now, credential)
    if scheme == "mssql":
        return _mssql(url, settings, policy, now, credential)
    raise ConfigurationError(
        f"reltask does not support database URLs that start with {scheme or 'nothing'}://.",
        remedy="Use sqlite:///file.db, postgresql://host/database or mssql://server/database.",
    )


def check_token_host(loaded: Loaded, credential: Any) -> None:
    """Refuse a URL that is not from code, and would send a token to a host that is not Azure's."""
    url, origin = loaded.settings.database.url or "", loaded.origins["database.url"]
    scheme = _scheme(url)
    if origin == IN_CODE or scheme not in ("postgresql", "postgres", "mssql"):
        return
    from reltask.stores.entra import check_hosts  # noqa: PLC0415 - one driver per process

    if scheme == "mssql":
        from reltask.stores.mssql.url import read_url as read_mssql_url  # noqa: PLC0415

        target = read_mssql_url(url)
        if target.login == "entra":
            check_hosts(target.hosts, origin)
    else:
        from reltask.stores.postgres.url import read_url  # noqa: PLC0415

        place = read_url(url, entra=credential is not None)
        if place.entra:
            check_hosts(place.hosts, origin)


def _scheme(url: str) -> str:
    return url.partition(":")[0].partition("+")[0].lower()


def _sqlite(
    url: str, settings: DatabaseSettings, policy: Policy, now: Now | None, *, inline: bool, watch: bool, clock: Clock
) -> Store:
    from reltask.stores.sqlite.connections import SqliteOptions  # noqa: PLC0415
    from reltask.stores.sqlite.store import SqliteStore  # noqa: PLC0415 - one driver per process

    options = SqliteOptions(command_timeout=settings.command_timeout)
    if not watch:
        options = msgspec.structs.replace(options, watch=None)
    return SqliteStore(url, options=options, policy=policy, now=now, inline=inline, clock=clock)


def _postgres(url: str, settings: DatabaseSettings, policy: Policy, now: Now | None, credential: Any) -> Store:
    from reltask.stores.entra import postgres_tokens  # noqa: PLC0415 - one driver per process
    from reltask.stores.postgres.connections import PostgresOptions  # noqa: PLC0415
    from reltask.stores.postgres.store import PostgresStore  # noqa: PLC0415
    from reltask.stores.postgres.url import read_url  # noqa: PLC0415

    target = read_url(url, entra=credential is not None)
    tokens = postgres_tokens(credential) if target.entra else None
    options = PostgresOptions(**_lengths(settings), tokens=tokens, signals_url=settings.signals_url)
    return PostgresStore(url, options=options, policy=policy, now=now)


def _mssql(url: str, settings: DatabaseSettings, policy: Policy, now: Now | None, credential: Any) -> Store:
    from reltask.stores.mssql.connections import MssqlOptions  # noqa: PLC0415
    from reltask.stores.mssql.store import MssqlStore  # noqa: PLC0415 - one driver per process

    return MssqlStore(url, options=MssqlOptions(**_lengths(settings)), policy=policy, now=now, credential=credential)


def _lengths(settings: DatabaseSettings) -> dict[str, Any]:
    """Timeouts in seconds, and the size of the pool."""
    return {
        "connect_timeout": settings.connect_timeout.total_seconds(),
        "command_timeout": settings.command_timeout.total_seconds(),
        "pool_size": settings.pool_size,
    }
