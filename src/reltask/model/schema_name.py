"""The schema that reltask's tables live in: `reltask`, or a name of the user's choice.

    postgresql://host/database?schema=billing        billing.jobs, role billing_run, channel billing
    mssql://server/database?schema=billing           billing.Jobs, role billing_run
    sqlite:///file.db?schema=billing                 billing_jobs: SQLite has no schemas, so it is a prefix

Two schemas of one database are two installs that know nothing of each other. The name is written
into SQL text, where no parameter can stand. So it is a plain name, which needs no quotes in any of
the databases, and nothing else is accepted. It is put into the statements by `stores/statement.py`
alone.
"""

from __future__ import annotations

import re

from reltask.errors import SettingsError
from reltask.model.connection_url import fold

SCHEMA = "reltask"
"""The default, and the name that the `.sql` files are written with."""
LONGEST = 48
"""Characters: with `_enqueue` it is still a role's name in PostgreSQL, which cuts names after 63."""

_NAME = r"[a-z][a-z0-9_]*"
_TAKEN = r"(pg_|db_|sqlite)\w*|public|dbo|sys|guest|information_schema"
"""Schemas of the databases themselves."""
_SHARED = r"\w+_(leases|cancel|awaited|ended|limit|limit_keys_of|marks_of)"
"""Names under which an install beside `x` would have something of the same name.

`x_leases`, `x_cancel`, `x_awaited` and `x_ended` are channels of `x`. On SQLite `x_limit_keys` would
be the table `keys` of `x_limit` and the table `limit_keys` of `x`; so are two triggers.
"""
_RESERVED = frozenset(
    """
    add all alter analyse analyze and any array as asc asymmetric authorization backup begin between binary both
    break browse bulk by cascade case cast check checkpoint close clustered coalesce collate collation column commit
    compute concurrently constraint contains containstable continue convert create cross current current_catalog
    current_date current_role current_schema current_time current_timestamp current_user cursor database dbcc
    deallocate declare default deferrable delete deny desc disk distinct distributed do double drop dump else end
    errlvl escape except exec execute exists exit external false fetch file fillfactor for foreign freetext
    freetexttable freeze from full function goto grant group having holdlock identity identity_insert identitycol if
    ilike in index initially inner insert intersect into is isnull join key kill lateral leading left like limit
    lineno load localtime localtimestamp merge national natural nocheck nonclustered not notnull null nullif of off
    offset offsets on only open opendatasource openquery openrowset openxml option or order outer over overlaps
    percent pivot placing plan precision primary print proc procedure raiserror read readtext reconfigure references
    replication restore restrict return returning revert revoke right rollback rowcount rowguidcol rule save schema
    securityaudit select session session_user set setuser shutdown similar some statistics symmetric system_user
    table tablesample textsize then to top trailing tran transaction trigger true truncate try_convert tsequal union
    unique unpivot update updatetext use user using values variadic varying verbose view waitfor when where while
    window with within writetext
    """.split()  # noqa: SIM905 - a list of words
)
"""Words that PostgreSQL or SQL Server reserve: as names they would need quotes."""


def check_schema(name: str) -> str:
    """The name, if it can stand in SQL text as it is; otherwise SettingsError."""
    taken = re.fullmatch(f"{_TAKEN}|{_SHARED}", name) or name in _RESERVED
    if len(name) <= LONGEST and re.fullmatch(_NAME, name) and not taken:
        return name
    raise SettingsError(
        f"{name[: LONGEST + 1]!r} cannot be the schema of reltask's tables.",
        remedy=f"Write a plain name of at most {LONGEST} characters, a to z, 0 to 9 and _, that begins with a letter, "
        "such as billing_tasks: no keyword of SQL, no schema of the database itself, and no end in _leases, _cancel, "
        "_awaited, _ended, _limit, _limit_keys_of or _marks_of.",
    )


def split_schema(url: str) -> tuple[str, str]:
    """The URL without `?schema=…`, and the schema that it names or the default."""
    base, mark, query = url.partition("?")
    options = query.split("&") if mark else []
    named = [option for option in options if _is_schema(option)]
    if not named:
        return url, SCHEMA
    others = "&".join(option for option in options if not _is_schema(option))
    names = {check_schema(option.partition("=")[2]) for option in named}
    if len(names) > 1:
        raise SettingsError("the database URL names two schemas.", remedy="Write schema= once.")
    return f"{base}?{others}" if others else base, names.pop()


def with_schema(url: str, name: str | None) -> str:
    """The URL with `?schema=NAME`. A URL that names another schema is an error; without a NAME it stays as it is."""
    if name is None:
        return url
    check_schema(name)
    if any(map(_is_schema, url.partition("?")[2].split("&"))):
        _, named = split_schema(url)
        if named == name:
            return url
        raise SettingsError(
            f"database.schema is {name}, but the database URL says schema={named}.", remedy="Remove one of them."
        )
    return f"{url}{'&' if '?' in url else '?'}schema={name}"


def _is_schema(option: str) -> bool:
    return fold(option.partition("=")[0]) == "schema"
