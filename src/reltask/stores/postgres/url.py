"""Reads a PostgreSQL URL: removes reltask's own options, and determines how much TLS is required.

    postgresql://user@host:5432/database?sslmode=verify-full&pgbouncer=true&auth=entra&schema=billing
                                         └ the driver's      └ reltask's own

                    a password                             a token: auth=entra, or App(url, credential=…)
    this machine    as the URL says                        TLS, certificate and name checked; sslmode=require takes any
    elsewhere       TLS, certificate and name checked,     TLS, certificate and name checked
                    unless the URL or PGSSLMODE chooses

For a password the driver sets up TLS from PostgreSQL's own options, variables and files, as psql does. Where reltask
demands more, it adds sslmode=verify-full to the URL. Then the CA certificates are those that an option, a variable or
~/.postgresql names, or else the system's (sslrootcert=system): for these reltask sets up TLS itself, because the driver
does not support them. A weaker mode has to be chosen, and is warned of once.

If the URL names no host, the driver takes one from the environment or a service file, which can name any machine.

A token gives access to the database. So no option can change these rules: it is never sent unencrypted, which excludes
socket files, and never to another machine whose certificate is not verified, by a CA of the system or one in the file
that `sslrootcert` names.
"""

from __future__ import annotations

import logging
import os
import ssl
from functools import cache
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace

from reltask.errors import SettingsError
from reltask.model.connection_url import YES, check_text
from reltask.model.schema_name import SCHEMA, split_schema
from reltask.stores.postgres.certificates import (
    MODES,
    has_usual_authorities,
    limit_versions,
    load_files,
    tls_mistake,
    unusable_file,
)

_log = logging.getLogger("reltask.database")

_ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})
"""The values of `sslmode` allowed for a token."""
_ANYWHERE = "?"
"""Stands for the host that a service file names."""


class Target(Struct, frozen=True):
    """The database that a URL names, in the driver's terms."""

    dsn: str
    pgbouncer: bool
    entra: bool = False
    """Whether a token of Microsoft Entra ID replaces the password."""
    makes_tls: bool = False
    """Whether reltask sets up TLS itself; else the driver does, as `sslmode` says."""
    verified: bool = False
    """Whether the server's certificate is then verified."""
    authorities: str | None = None
    """A file with the CA certificates for that; None: the system's own."""
    query: dict[str, str] = {}
    """The driver's own options."""
    hosts: tuple[str, ...] = ()
    """The names of the servers."""
    schema: str = SCHEMA
    """The schema of reltask's tables."""

    def mistake(self, error: BaseException) -> SettingsError | None:
        """The TLS option that caused this error of the driver; None if none did or reltask set up TLS."""
        return None if self.makes_tls else tls_mistake(self.query, error)

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context of reltask's own; unverified, it means `sslmode=require`. None: the driver sets up TLS."""
        if not self.makes_tls:
            return None
        if self.verified and not self.entra:
            _check_system(self.query)
        try:
            context = ssl.create_default_context(cafile=self.authorities)
        except OSError as error:
            raise unusable_file("sslrootcert", self.authorities or "", error) from None
        if not self.verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if not self.entra:
            load_files(context, self.query)
        limit_versions(context, self.query)
        context.set_alpn_protocols(["postgresql"])  # PostgreSQL 17 requires it for direct TLS
        return context


def read_url(url: str, *, entra: bool = False) -> Target:
    """Read a `postgresql://` URL, or say what is wrong with it without quoting it. `entra`: log in with tokens."""
    url, schema = split_schema(url)
    try:
        check_text(url)
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        hosts = _hosts(parts, query)
    except ValueError:
        raise SettingsError(
            "the database URL cannot be read.",
            remedy="Write postgresql://user@host:5432/database; escape / @ : # ? with %.",
        ) from None
    pgbouncer = query.pop("pgbouncer", "false").lower() in YES
    entra = _asks_for_token(query.pop("auth", None)) or entra
    read = _for_token if entra else _for_password
    return replace(read(parts, query, hosts, pgbouncer=pgbouncer), schema=schema)


def _for_password(parts: SplitResult, query: dict[str, str], hosts: list[str], *, pgbouncer: bool) -> Target:
    demanded = "" if query.get("sslmode") else _demanded_mode(hosts, query)
    if demanded:
        query["sslmode"] = demanded
    by_system = _is_by_system(hosts, query)
    if not _are_local(hosts) and not demanded and not by_system:
        mode = query.get("sslmode") or os.environ.get("PGSSLMODE", "")
        if mode in MODES and not mode.startswith("verify") and not _knows_authorities(mode, query):
            warn_unverified(mode)
    return Target(
        _dsn(parts, query), pgbouncer, makes_tls=by_system, verified=by_system, query=query, hosts=tuple(hosts)
    )


def _for_token(parts: SplitResult, query: dict[str, str], hosts: list[str], *, pgbouncer: bool) -> Target:
    _check_login(parts, query)
    _check_encryption(hosts, query)
    authorities = query.get("sslrootcert", "system")
    named = None if authorities == "system" else authorities
    verified = not (_are_local(hosts) and query.get("sslmode") == "require")
    return Target(
        _dsn(parts, query),
        pgbouncer,
        entra=True,
        makes_tls=True,
        verified=verified,
        authorities=named,
        query=query,
        hosts=tuple(hosts),
    )


def _dsn(parts: SplitResult, query: dict[str, str]) -> str:
    return urlunsplit(parts._replace(query=urlencode(query)))


def _hosts(parts: SplitResult, query: dict[str, str]) -> list[str]:
    """The names that the driver will connect to, without their ports; "" where nothing names one."""
    user_info, _, places = parts.netloc.rpartition("@")
    if "@" in user_info:
        raise ValueError  # the driver would take what follows the first @ for the host
    written = places or query.get("host")
    if not written and (query.get("service") or os.environ.get("PGSERVICE")):
        return [_ANYWHERE]
    written = written or os.environ.get("PGHOST", "")
    return [_without_port(unquote(host)) for host in written.split(",")]


def _without_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _are_sockets(hosts: list[str]) -> bool:
    return all(host.startswith("/") for host in hosts)


def _are_local(hosts: list[str]) -> bool:
    return all(_is_local(host) for host in hosts)


def _is_local(host: str) -> bool:
    if host in {"", "localhost"} or host.startswith("/"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _authorities(query: dict[str, str]) -> str:
    """The CA certificates that the driver would use."""
    return query.get("sslrootcert") or os.environ.get("PGSSLROOTCERT", "")


def _knows_authorities(mode: str, query: dict[str, str]) -> bool:
    """Whether the driver verifies the certificate although the mode does not demand it, as psql does."""
    return mode == "require" and (bool(_authorities(query)) or has_usual_authorities())


@cache
def warn_unverified(mode: str) -> None:
    """Say once per process and mode that the server is not verified."""
    _log.warning(
        "sslmode=%s does not verify the PostgreSQL server: another machine in its place would receive the password. "
        "Write sslmode=verify-full in the URL, and sslrootcert=… if this system does not know the server's CA.",
        mode,
    )


def _is_by_system(hosts: list[str], query: dict[str, str]) -> bool:
    """Whether the server's certificate must be verified by the system's CA certificates; never on a socket.

    So it is elsewhere, for verify-full, if nothing names other ones; a service file may. PGSSLROOTCERT=system does not
    turn on TLS where the URL disables it, or on this machine unless TLS is demanded.
    """
    if _are_sockets(hosts):
        return False
    if not _authorities(query):
        elsewhere = not _are_local(hosts) and _ANYWHERE not in hosts
        return elsewhere and query.get("sslmode") == "verify-full" and not has_usual_authorities()
    if _authorities(query) != "system":
        return False
    if query.get("sslrootcert"):
        return True
    mode = query.get("sslmode") or os.environ.get("PGSSLMODE")
    return mode in _ENCRYPTED if _are_local(hosts) else query.get("sslmode") != "disable"


def _demanded_mode(hosts: list[str], query: dict[str, str]) -> str:
    """The `sslmode` for a URL without one; "": the driver decides by the environment."""
    if _are_sockets(hosts):
        return "disable"  # otherwise the driver would read files needlessly
    if not _are_local(hosts):
        _check_service(query)
    if _is_by_system(hosts, query):
        return "verify-full"
    if _are_local(hosts) or os.environ.get("PGSSLMODE") in _ENCRYPTED:
        return ""
    return "verify-full"


def _check_service(query: dict[str, str]) -> None:
    if query.get("service"):
        raise SettingsError(
            "the database URL names a service, whose host and TLS options are unknown.",
            remedy="Add sslmode=verify-full to the URL; for a server on this machine, sslmode=prefer.",
        )


def _check_system(query: dict[str, str]) -> None:
    """Public CAs issue certificates to any host, so the name must be checked, too. psql has the same rule."""
    if query["sslmode"] != "verify-full":
        raise SettingsError(
            "sslrootcert=system, in the database URL or PGSSLROOTCERT, needs sslmode=verify-full.",
            remedy="Write sslmode=verify-full, or name the file with the server's CA certificates: sslrootcert=…",
        )


def _asks_for_token(auth: str | None) -> bool:
    if auth not in {None, "entra"}:
        raise SettingsError(
            "auth in the database URL is not a login that reltask supports.",
            remedy="Write auth=entra for Microsoft Entra ID, or remove it to log in with a password.",
        )
    return auth is not None


def _check_login(parts: SplitResult, query: dict[str, str]) -> None:
    if parts.password or "password" in query:
        raise SettingsError(
            "the database URL has a password, but the login uses a token of Microsoft Entra ID.",
            remedy="Remove the password from the URL; or log in with it, without auth=entra and credential=…",
        )


def _check_encryption(hosts: list[str], query: dict[str, str]) -> None:
    mode = query.get("sslmode", "verify-full")
    if mode not in _ENCRYPTED:
        raise SettingsError(
            f"a token of Microsoft Entra ID is never sent unencrypted, and the database URL says sslmode={mode}.",
            remedy="Remove sslmode from the URL: the default is verify-full. Without TLS, log in with a password.",
        )
    if any(host in {"", _ANYWHERE} or host.startswith("/") for host in hosts):
        raise SettingsError(
            "a token of Microsoft Entra ID is never sent unencrypted, and the database URL names no server.",
            remedy="Write postgresql://user@server.postgres.database.azure.com/database?auth=entra.",
        )
