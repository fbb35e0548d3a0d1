"""Database URLs: reading them, and showing them without their secrets.

    postgresql://user:password@host:5432/database?sslmode=require&password=...
    └─ scheme    │    │        └ place           └ options: only the harmless ones are shown
                 │    └ never shown
                 └ shown

A password may hold any character, and users forget to percent-encode it. So a URL can often be read in two ways: in
`u:a/b@host` the `/b@host` is a path by the standard, but the user meant a part of the password. `safe_url` shows a part
only if it is harmless in every reading; where the readings differ, it shows the scheme alone.

ADO.NET connection strings (`Server=tcp:host,1433;Database=…`) are converted to URLs here; the other modules know URLs
only.
"""

from __future__ import annotations

import re

YES = frozenset({"1", "true", "yes", "on"})
"""Values that switch on one of reltask's own options."""
HIDDEN = "***"
"""Shown instead of a secret."""

# Patterns are compiled when they are first used: compiling them all would slow down every start.
_URL = r"(?ias)([a-z][a-z0-9+.-]*)://(.*)"
_AUTHORITY = r"(?s)([^/?#]*)(.*)"
_HOST = r"(?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d+)?"
_HOSTS = rf"(?ia)(?:{_HOST}(?:,{_HOST})*)?"
_PLAIN_USER = r"(?ai)(?:[\w.+~-]|%(?!3a)[0-9a-f]{2})*"
_PLAIN_VALUE = r"(?a)[\w.,:/\\%+ -]*"

_PLAIN_OPTION = r"""(?ix)
    application_?name | (connect_?)?timeout | host | port                                                  # all
    | auth | pgbouncer | schema                                                                            # ours
    | gssencmode | passfile | service | sslcert | sslkey | sslmode | sslrootcert | target_?session_?attrs  # PostgreSQL
    | application_?intent | authentication | encrypt | instance | trust_?server_?certificate               # SQL Server
    | cache | immutable | mode | vfs                                                                       # SQLite
"""
"""Options whose values may be shown. An allow list, because a list of secret options is never complete."""

_SECRET_OPTIONS = frozenset(
    {"accesstoken", "clientsecret", "passphrase", "passwd", "password", "pwd", "secret", "sslpassword", "token"}
)


def fold(name: str) -> str:
    """A name in lower case without underscores, hyphens and spaces, for comparison."""
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def is_url(text: str) -> bool:
    """Whether this has the form `scheme://…`."""
    return re.fullmatch(_URL, text) is not None


def check_text(url: str) -> None:
    """ValueError for a URL that no driver can take: with a NUL, even a quoted one, or with what UTF-8 does not have."""
    url.encode()
    if "\0" in url or "%00" in url:
        raise ValueError("it contains a NUL")


def safe_url(url: str) -> str:
    """The URL as it may be shown: no password, no secret options, and nothing that might be a part of them."""
    match = re.fullmatch(_URL, url)
    if match is None:
        return HIDDEN
    scheme, rest = match.groups()
    authority, tail = _split_authority(rest)
    user_info, at, hosts = authority.rpartition("@")
    user, colon, _ = user_info.partition(":")
    plain = re.fullmatch(_PLAIN_USER, user) and re.fullmatch(_HOSTS, hosts)
    if not plain or _is_ambiguous(scheme, authority, tail):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{user}{f':{HIDDEN}' if colon else ''}{at}{hosts}{_safe_tail(tail)}"


def safe_value(value: str) -> str:
    """A harmless option's value as it may be shown; one with unusual characters is hidden."""
    return value if re.fullmatch(_PLAIN_VALUE, value) else HIDDEN


def holds_password(url: str) -> bool:
    """Whether this URL contains a password, even one that is not percent-encoded."""
    match = re.fullmatch(_URL, url)
    if match is None:
        return False
    scheme, rest = match.groups()
    authority, tail = _split_authority(rest)
    user_info, _, hosts = authority.rpartition("@")
    # Some drivers accept options after a semicolon anywhere in the URL: check all of them.
    if user_info.partition(":")[2] or any(fold(name) in _SECRET_OPTIONS for name, _ in _options(rest)):
        return True
    # `u:a/b@host`: by the standard host `u` with port `a`; the user meant a password with a slash.
    path = tail.partition("?")[0]
    return _is_ambiguous(scheme, authority, tail) and ("@" in path or not re.fullmatch(_HOSTS, hosts))


def _split_authority(rest: str) -> tuple[str, str]:
    match = re.fullmatch(_AUTHORITY, rest)
    assert match is not None  # the pattern accepts every text
    return match[1], match[2]


def _is_ambiguous(scheme: str, authority: str, tail: str) -> bool:
    """Whether an @ after the authority may end a password, or a `;` be part of it. A SQLite path may contain both."""
    return ("@" in tail or ";" in authority) and not (scheme.lower() == "sqlite" and not authority)


def _safe_tail(tail: str) -> str:
    """The path and the harmless options. The path is cut at `;` or `=`, where some drivers' options begin."""
    path, _, query = tail.partition("#")[0].partition("?")
    plain = re.split("[;&=]", path, maxsplit=1)[0]
    shown = [_safe_option(name, value) for name, value in _options(query)]
    return plain + (HIDDEN if plain != path else "") + ("?" + "&".join(shown) if shown else "")


def _safe_option(name: str, value: str) -> str:
    harmless = re.fullmatch(_PLAIN_OPTION, name) and safe_value(value) == value
    return f"{name}={value}" if harmless else HIDDEN


def _options(text: str) -> list[tuple[str, str]]:
    """Everything that looks like an option: the decoded names, and the values as written."""
    pairs = [part.partition("=") for part in re.split("[?&;]", text) if part]
    if not any(equals for _, equals, _ in pairs):
        return [(name, "") for name, _, _ in pairs]
    from urllib.parse import unquote  # noqa: PLC0415 - most URLs have no options

    return [(unquote(name), value) for name, _, value in pairs]


# ── ADO.NET ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_PAIR = r"""(?s)\s*(?P<name>[^=;]+?)\s*=\s*(?P<value>"(?:[^"]|"")*"|'(?:[^']|'')*'|[^;"'][^;]*?|)\s*(?:;|\Z)"""
_SYNONYMS = {
    "server": ("server", "datasource", "address", "addr", "networkaddress"),
    "database": ("database", "initialcatalog"),
    "user": ("user", "userid", "uid"),
    "password": ("password", "pwd"),
    "connect_timeout": ("connecttimeout", "connectiontimeout", "timeout"),
    "trust_server_certificate": ("trustservercertificate",),
}
_MEANING = {synonym: name for name, synonyms in _SYNONYMS.items() for synonym in synonyms}


def from_ado_net(text: str) -> str:
    """The `mssql://` URL that means the same as an ADO.NET connection string. Errors never quote it."""
    from urllib.parse import quote, urlencode  # noqa: PLC0415 - needed only for ADO.NET strings

    parts = _ado_net_parts(text)
    host, port, instance = _ado_net_server(parts.pop("server", ""))
    if instance:
        parts["instance"] = instance
    user, password, database = (quote(parts.pop(name, ""), safe="") for name in ("user", "password", "database"))
    user_info = f"{user}:{password}@" if password else f"{user}@" if user else ""
    query = urlencode(parts, quote_via=quote)
    return f"mssql://{user_info}{host}{port}/{database}{'?' if query else ''}{query}"


def _ado_net_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    position = 0
    while text[position:].strip("; \t\r\n"):
        match = re.match(_PAIR, text[position:])
        if match is None:
            raise ValueError('it is not a connection string; write "Server=tcp:host,1433;Database=name;Encrypt=True;".')
        parts[_option_name(match["name"])] = _option_value(match["value"])
        position += match.end()
    return parts


def _option_name(written: str) -> str:
    """`Connection Timeout` and `ConnectTimeout` become `connect_timeout`; an unknown name becomes snake case."""
    respelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", written.strip("; \t\r\n")).replace(" ", "_").lower()
    return _MEANING.get(fold(written.strip("; \t\r\n")), re.sub("_+", "_", respelled))


def _option_value(written: str) -> str:
    quote = written[:1]
    if quote in ('"', "'"):
        return written[1:-1].replace(quote * 2, quote)
    return written.lower() if written.lower() in ("true", "false", "yes", "no") else written


def _ado_net_server(server: str) -> tuple[str, str, str]:
    r"""Host, `:port` or nothing, and instance or nothing, of `tcp:host\instance,port`."""
    address = server[4:] if server.lower().startswith("tcp:") else server
    place, _, port = address.partition(",")
    host, _, instance = place.partition("\\")
    host = "localhost" if host.strip() in (".", "(local)") else host.strip()
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if not host or not re.fullmatch(_HOSTS, host) or (port and not port.strip().isdecimal()):
        raise ValueError('it does not name a TCP server; write "Server=tcp:host,1433;Database=name;…".')
    return host, f":{port.strip()}" if port else "", instance.strip()
