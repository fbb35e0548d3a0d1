"""The facts about an SQLite file for `reltask doctor`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from reltask.model.doctor import Facts
from reltask.stores.migration import schema_version
from reltask.stores.sqlite.connections import Session
from reltask.stores.sqlite.schema import read_schema
from reltask.stores.sqlite.values import moment
from reltask.stores.statement import load


def examine(session: Session) -> Facts:
    """Facts about a file that may have no tables yet."""
    connection = session.connection()
    statements = load("sqlite", "examine", "named", session.schema)
    (version,), (journal,) = (connection.execute(statement.text).fetchone() for statement in statements)
    place = Path(session.path)
    writable = os.access(place, os.W_OK) and os.access(place.parent, os.W_OK)
    found = read_schema(session)
    return Facts(
        schema=session.schema,
        database="sqlite",
        server=f"SQLite {version}",
        user=None,
        now=moment(session.read_now(connection)),
        writable=writable,
        schema_version=found.version,
        oldest_version=found.oldest,
        spoken_version=schema_version("sqlite"),
        may=frozenset({"run", "operate", "enqueue", "read"} if writable else {"read"}),
        settings={"journal_mode": journal, "filesystem": _filesystem(place)},
    )


def _filesystem(place: Path) -> str:
    """The type of the file's filesystem on Linux, otherwise an empty text."""
    found = {}
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mounted, kind, *_ = line.split(" ")
            found[Path(mounted)] = kind
    return next((found[folder] for folder in place.parents if folder in found), "")
