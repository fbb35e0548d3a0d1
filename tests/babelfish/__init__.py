r"""Rewrites T-SQL for Babelfish, which speaks SQL Server's protocol and is no SQL Server. Tests alone use it.

reltask's statements are written for SQL Server. Where no SQL Server is at hand they are run on Babelfish, and what it
does not take, or does in another way, is rewritten here, as the statements are read:

    statement.read_sql("mssql", verb)       ─┐                   ┌─► the store
    migration.schema_scripts("mssql")       ─┴─► `for_babelfish` ┴─► reltask migrate

| SQL Server | Babelfish | rewritten |
|---|---|---|
| `OPENJSON … WITH` decodes the escapes of strings | leaves `\"` as it is | a chain of REPLACE around each text |
| `UPDATE … OUTPUT … FROM … JOIN`, after a wait for a lock | changes nothing | the join becomes `WHERE EXISTS` |
| ERROR_NUMBER() | one number for most errors | SQL Server's number, by PostgreSQL's message |
| LOCK_ESCALATION, ALTER AUTHORIZATION, ranges in LIKE | rejected | left out |
| views of the server's state | an error that TRY does not catch | left out |
| DATALENGTH: two bytes for each character of an nvarchar | bytes of UTF-8 | twice as many |
| compatibility level | 120 for every database | null: unknown |

It also ignores lock hints: a verb that should skip a locked row waits for it. That cannot be rewritten.

The processes that a test starts import `site/sitecustomize.py`, which does the same there.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from reltask.model.schema_name import SCHEMA

SITE = str(Path(__file__).parent / "site")
"""On the import path of the processes that tests start, if the server is Babelfish."""

_OPENJSON = re.compile(r"OPENJSON\([@\w.]+\) WITH \((?P<columns>.*?)\) AS (?P<alias>\w+)", re.DOTALL)
_TEXT = re.compile(r"(\[?\w+\]?)\s+nvarchar\((?:\d+|max)\)\s+'\$[^']*'(?!\s+AS JSON)")
_JOINED = re.compile(
    r"UPDATE job\n\s+SET (?P<set>(?:(?!\bUPDATE\b).)*?)\n\s+OUTPUT (?P<output>[^;]*?)\n"
    r"\s+FROM (?P<given>@\w+|\(\n[^;]*?\n\s+\)) AS (?P<alias>\w+)\n"
    r"\s+JOIN reltask\.Jobs AS job\s+WITH \(INDEX \(\w+\), [A-Z, ]+\)\s+ON (?P<on>[^;]*?)\n"
    r"(?:\s+WHERE (?P<where>[^;]*?)\n)?\s+OPTION \(LOOP JOIN, FORCE ORDER\);",
    re.DOTALL,
)
_NUMBER = 33557097
"""The number of a PostgreSQL error for which Babelfish has none."""
_MESSAGES = {
    "%permission denied for%": 229,
    '%relation "%" does not exist%': 208,
    '%column "%" does not exist%': 207,
    "%duplicate key%": 2627,
    "%violates % constraint%": 547,
    "%deadlock detected%": 1205,
    "%due to lock timeout%": 1222,
    "%could not serialize access%": 3960,
    "%read-only transaction%": 3906,
}
_PHRASES = (
    (r"^(\[.*\])?database .* does not exist", 4060),
    (r"authentication failed for user", 18456),
    *((message.strip("%").replace("%", ".*"), number) for message, number in _MESSAGES.items()),
)
"""For errors that are not caught on the server."""
_CAUGHT = "SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message"


def for_babelfish(text: str) -> str:
    """A statement or a script, as Babelfish takes it."""
    text = _JOINED.sub(_without_join, _with_decoded_texts(text))
    text = text.replace(_CAUGHT, f"SELECT {_error_number()} AS error_number, ERROR_MESSAGE() AS error_message")
    return _without_the_unknown(text)


def install() -> None:
    """Rewrite what this process reads from now on."""
    from reltask.stores import migration, statement  # noqa: PLC0415 - only where there is such a server
    from reltask.stores.borrowed import link  # noqa: PLC0415
    from reltask.stores.mssql import borrowed, errors  # noqa: PLC0415

    read_sql, scripts = statement.read_sql, migration.schema_scripts

    def read(store: str, verb: str, schema: str = SCHEMA) -> str:
        if store != "mssql":
            return read_sql(store, verb, schema)
        return statement.in_schema(for_babelfish(read_sql(store, verb)), schema)

    @cache
    def read_scripts(dialect: migration.Dialect, schema: str = SCHEMA) -> list[tuple[str, str]]:
        if dialect != "mssql":
            return scripts(dialect, schema)
        return [(name, statement.in_schema(for_babelfish(text), schema)) for name, text in scripts(dialect)]

    statement.read_sql = borrowed.read_sql = read  # type: ignore[attr-defined] # imported there
    migration.schema_scripts = read_scripts
    errors.PHRASES = (*errors.PHRASES, *_PHRASES)  # type: ignore[attr-defined] # imported there
    link._MISSING = (*link._MISSING, 'relation "{}.')  # type: ignore[assignment] # one more
    for cached in (statement.load, statement.load_batch, migration.migrations):
        cached.cache_clear()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SITE, os.environ.get("PYTHONPATH", "")]))


def _with_decoded_texts(text: str) -> str:
    for found in _OPENJSON.finditer(text):
        for column in _TEXT.findall(found["columns"]):
            use = re.escape(f"{found['alias']}.{column}") + r"(?!\w)"
            text = re.sub(use, lambda match: _decoded(match[0]), text)
    return text.replace("CAST(value AS nvarchar(", f"CAST({_decoded('value')} AS nvarchar(")


def _decoded(value: str) -> str:
    r"""`\\` becomes U+E000 first and `\` last, so that it is not mistaken for the beginning of another escape."""
    pairs = (
        (r"N'\\'", "NCHAR(57344)"),
        (r"N'\"'", "N'\"'"),
        (r"N'\n'", "NCHAR(10)"),
        (r"N'\r'", "NCHAR(13)"),
        (r"N'\t'", "NCHAR(9)"),
        ("NCHAR(57344)", r"N'\'"),
    )
    for old, new in pairs:
        value = f"REPLACE({value}, {old}, {new})"
    return value


def _without_join(update: re.Match[str]) -> str:
    alias = rf"\b{update['alias']}\."
    if re.search(alias, update["set"]) or re.search(alias, update["output"]):
        return update[0]
    where = update["where"] or "1 = 1"
    inside, outside = update["on"], where.replace("job.", "")
    if re.search(alias, where):
        inside, outside = f"{inside} AND {where}", "1 = 1"
    inside = re.sub(r"\bjob\.", "Jobs.", inside)
    found = f"EXISTS (SELECT 1 FROM {update['given']} AS {update['alias']} WHERE {inside})"
    written = update["set"].replace("job.", "")
    return f"UPDATE reltask.Jobs SET {written} OUTPUT {update['output']} WHERE {found} AND {outside};"


def _error_number() -> str:
    cases = "".join(f" WHEN ERROR_MESSAGE() LIKE N'{text}' THEN {number}" for text, number in _MESSAGES.items())
    return f"CASE WHEN ERROR_NUMBER() <> {_NUMBER} THEN ERROR_NUMBER(){cases} ELSE ERROR_NUMBER() END"


_LANE = (
    "CASE WHEN LimitKey IS NOT NULL THEN REPLACE(REPLACE("
    + "".join(
        f"CASE WHEN Isolated = {apart} AND Suspended = {asleep} AND Priority = {level}"
        f" THEN N'{apart}{asleep}<q>\x01<t>\x01{level}' ELSE "
        for apart in (0, 1) for asleep in (0, 1) for level in range(10)
    )
    + "N''" + " END" * 40 + ", N'<q>', Queue), N'<t>', JobName) END"
)  # fmt: skip
"""Jobs.LimitLane without `+` and casts, which are not immutable there."""
_UNKNOWN = (
    (r"LimitLane +AS CASE WHEN .*? END PERSISTED,", f"LimitLane AS {_LANE} PERSISTED,"),
    (r"ALTER TABLE reltask\.\w+ SET \(LOCK_ESCALATION = DISABLE\);", ""),
    (r"\n *(?:-- [^\n]*\n *)?CONSTRAINT CK_\w+ArePrintable CHECK \([^;]*?BIN2\n\s+\),", ""),
    (r"IF NOT EXISTS \((?:(?!IF NOT EXISTS).)*?ALTER AUTHORIZATION [^;]*;\n", ""),
    (r"GRANT CREATE TABLE TO \w+;\n", ""),
    (r"\bDATALENGTH\(", "2 * DATALENGTH("),
    (r"\(\s+SELECT CAST\(compatibility_level AS int\).*?\n\s+\) AS compatibility_level", "NULL AS compatibility_level"),
    (r"BEGIN TRY\n    EXEC sp_executesql\n(?:(?!END TRY).)*?lock_escalation_desc.*?END CATCH;\n", ""),
    (r"BEGIN TRY\n    EXEC sp_executesql\n(?:(?!END TRY).)*?dm_tran_session_transactions.*?END CATCH;\n", ""),
    (r"BEGIN TRY\n    EXEC sp_executesql\n(?:(?!END TRY).)*?dm_db_resource_stats.*?END CATCH;\n", ""),
)


def _without_the_unknown(text: str) -> str:
    for pattern, instead in _UNKNOWN:
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    return text
