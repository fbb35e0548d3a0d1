r"""Reads a SQL Server URL.

    mssql://server.database.windows.net/TaskExecutionDb           Microsoft Entra ID: a token, no password anywhere
    mssql://user:password@server:1433/db?encrypt=yes              a SQL login, for servers that have nothing else
    mssql://server/db?trusted_connection=yes                      a Windows domain
    mssql://server/db?schema=billing                              tables in another schema than reltask
            └ host  └ db  └ options, by the names that ADO.NET and ODBC give them

Rules that no option can change: a token is never sent unencrypted, nor to another machine whose certificate is not
verified. Encryption is on unless the URL says otherwise. On loopback, where servers have self-signed certificates, a
SQL login does not verify them. The driver must not reconnect by itself: that would silently lose the session's state.
"""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from reltask.errors import SettingsError
from reltask.model.connection_url import check_text, fold
from reltask.model.schema_name import SCHEMA, split_schema

Login = Literal["entra", "sql", "windows"]

_PASSED_ON = {
    "applicationintent": "ApplicationIntent",
    "hostnameincertificate": "HostnameInCertificate",
    "ipaddresspreference": "IpAddressPreference",
    "multisubnetfailover": "MultiSubnetFailover",
    "packetsize": "PacketSize",
    "servercertificate": "ServerCertificate",
    "serverspn": "ServerSPN",
}
"""Options of the driver, by their folded names."""
_OWN = frozenset(
    {"authentication", "connecttimeout", "encrypt", "instance", "integratedsecurity", "trustedconnection"}
    | {"trustservercertificate"}
)
_WITHOUT_EFFECT = frozenset(
    {"applicationname", "connectretrycount", "connectretryinterval", "maxpoolsize", "minpoolsize"}
    | {"multipleactiveresultsets", "persistsecurityinfo", "pooling", "workstationid"}
)
"""ADO.NET options that Azure's portal writes into its connection strings, and that have no effect here."""

_LONGEST = 86_400.0
"""Seconds that a connect timeout may have."""
_YES = frozenset({"true", "yes", "1", "on", "mandatory", "sspi"})
_NO = frozenset({"false", "no", "0", "off", "optional"})
_ENTRA = frozenset({"activedirectorydefault", "activedirectoryworkloadidentity"})
_MANAGED = frozenset({"activedirectorymanagedidentity", "activedirectorymsi"})


class Target(Struct, frozen=True, kw_only=True):
    """The database that a URL names, in the driver's terms."""

    connection_string: str
    """Contains the password of a SQL login, never a token."""
    login: Login
    client_id: str | None = None
    """Of a user-assigned managed identity, if the URL names one."""
    connect_timeout: float | None = None
    hosts: tuple[str, ...] = ()
    """The server's name, and the name that its certificate must have, if the URL names one."""
    schema: str = SCHEMA
    """The schema of reltask's tables."""

    def __repr__(self) -> str:
        return f"Target(login={self.login!r})"


def read_url(url: str) -> Target:
    """Read a `mssql://` URL, or say what is wrong with it without quoting it."""
    url, schema = split_schema(url)
    try:
        check_text(url)
        parts = urlsplit(url)
        place = _server(parts, options := _options(parts))
    except ValueError:
        raise SettingsError(
            "the database URL cannot be read.",
            remedy="Write mssql://server.database.windows.net/database; escape / @ : # ? with %.",
        ) from None
    login, client_id, keywords = _login(parts, options)
    encryption = _encryption(options, login=login, local=_is_local(parts.hostname or ""))
    passed_on = {_PASSED_ON[name]: value for name, value in options.items() if name in _PASSED_ON}
    return Target(
        connection_string=_join(place | encryption | keywords | passed_on | {"ConnectRetryCount": "0"}),
        login=login,
        client_id=client_id,
        connect_timeout=_seconds(options.get("connecttimeout")),
        hosts=tuple(filter(None, [parts.hostname, options.get("hostnameincertificate")])),
        schema=schema,
    )


def _options(parts: SplitResult) -> dict[str, str]:
    """The options by their folded names. An unknown one is refused, so that a misspelt option is noticed."""
    known = {**dict.fromkeys([*_OWN, *_WITHOUT_EFFECT]), **_PASSED_ON}
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if fold(name) not in known:
            near = get_close_matches(fold(name), known, n=1)
            raise SettingsError(
                f"the database URL has an unknown option: {name}.",
                remedy=f"Did you mean {near[0]}?" if near else "Remove it.",
            )
        options[fold(name)] = value
    return options


def _server(parts: SplitResult, options: dict[str, str]) -> dict[str, str]:
    database = unquote(parts.path.removeprefix("/"))
    if parts.hostname and not database:
        raise SettingsError(
            "the database URL names no database.", remedy="Write its name at the end: mssql://server/database."
        )
    if not parts.hostname or not database or "/" in database or ";" in parts.netloc:
        raise ValueError
    instance = options.get("instance", "")
    port = f",{parts.port or 1433}" if not instance or parts.port else ""
    return {"Server": f"tcp:{parts.hostname}{chr(92) if instance else ''}{instance}{port}", "Database": database}


def _login(parts: SplitResult, options: dict[str, str]) -> tuple[Login, str | None, dict[str, str]]:
    """The kind of login, the client id, and the keywords for the connection string."""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    asked = fold(options.get("authentication", ""))
    if _is_on(options, "trustedconnection") or _is_on(options, "integratedsecurity"):
        return "windows", None, {"Trusted_Connection": "yes"}
    if asked in _MANAGED:
        return "entra", user or None, {}
    if asked in {"", "sqlpassword"} and user and password:
        return "sql", None, {"UID": user, "PWD": password}
    if asked and asked not in _ENTRA:
        raise SettingsError(
            f"reltask does not support authentication={options['authentication']}.",
            remedy="Remove it to use DefaultAzureCredential, or pass another credential: App(url, credential=…).",
        )
    if user:
        raise SettingsError(
            "the database URL has a user, but no password.",
            remedy="Remove the user to log in with Microsoft Entra ID; AZURE_CLIENT_ID names a managed identity.",
        )
    return "entra", None, {}


def _encryption(options: dict[str, str], *, login: Login, local: bool) -> dict[str, str]:
    asked = options.get("encrypt", "yes").lower()
    if asked not in _YES | _NO | {"strict"}:
        raise SettingsError(
            "encrypt in the database URL is not yes, no or strict.", remedy="Remove it: the default is yes."
        )
    trusted = _is_on(options, "trustservercertificate", unless=local and login != "entra")
    if login == "entra" and asked in _NO:
        raise SettingsError(
            "a token of Microsoft Entra ID is never sent unencrypted, and the database URL says encrypt=no.",
            remedy="Remove encrypt=no from the URL, or use a SQL login on a server without TLS.",
        )
    if login == "entra" and trusted and not local:
        raise SettingsError(
            "a token of Microsoft Entra ID is only sent to a server whose certificate is verified.",
            remedy="Remove trust_server_certificate=true from the URL; hostname_in_certificate=… may be what you need.",
        )
    encrypt = "strict" if asked == "strict" else "yes" if asked in _YES else "no"
    return {"Encrypt": encrypt, "TrustServerCertificate": "yes" if trusted else "no"}


def _seconds(written: str | None) -> float | None:
    if not written:
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(written)) <= _LONGEST:
            return seconds
    raise SettingsError(
        "connect_timeout in the database URL is not a number of seconds.", remedy="Write connect_timeout=15."
    )


def _is_on(options: dict[str, str], name: str, *, unless: bool = False) -> bool:
    """Whether an option is on; if it is not given, `unless`."""
    return options[name].lower() in _YES if name in options else unless


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _join(keywords: dict[str, str]) -> str:
    """A connection string. Braces quote the values."""
    return "".join(f"{name}={{{value.replace('}', '}}')}}};" for name, value in keywords.items())
