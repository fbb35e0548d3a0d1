"""What `reltask doctor` calls a server that speaks SQL Server's protocol."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from reltask.errors import SchemaError
from reltask.stores.mssql.examine import examine

SERVERS = [
    (3, "Microsoft SQL Server 2022 (RTM-CU26) - 16.0.4250.1 (X64)", "Microsoft SQL Server 2022 (RTM-CU26)"),
    (3, "Babelfish for PostgreSQL with SQL Server Compatibility - 12.0.2000.8", "Babelfish for PostgreSQL"),
    (5, "Microsoft SQL Azure (RTM) - 12.0.2000.8", "Azure SQL Database 12.0.2000.8"),
    (8, "Microsoft SQL Azure (RTM) - 12.0.2000.8", "Azure SQL Managed Instance 12.0.2000.8"),
]


@pytest.mark.parametrize(("edition", "words", "shown"), SERVERS, ids=[row[2] for row in SERVERS])
async def test_a_server_is_called_by_its_own_name(edition: int, words: str, shown: str) -> None:
    """Its version alone says nothing: Azure says 12.0 for ever, and so does an emulator."""

    async def ask(verb: str) -> list[dict[str, Any]]:
        if verb != "examine":
            raise SchemaError("no tables")
        answer = {"engine_edition": edition, "words": words, "version": "12.0.2000.8"}
        return [defaultdict(lambda: None, answer)]

    assert (await examine(ask, "reltask")).server.startswith(shown)
