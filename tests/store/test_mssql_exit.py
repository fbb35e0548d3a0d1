"""The end of a process that has connections to SQL Server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.mssql_server import VARIABLE, python_path

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no server")

PROGRAM = """
import asyncio, sys
from reltask.stores.mssql.store import MssqlStore

SLOW = "DECLARE @i int = 0; WHILE @i < 200000 SET @i = @i + 1; SELECT @i"

async def main():
    store = MssqlStore(sys.argv[1])
    try:
        async with store._connections.take() as line:
            await line.call(lambda connection: connection.cursor().execute(SLOW).fetchall(), 0.05)
    except TimeoutError:
        print("overdue")
    await store.close()

asyncio.run(main())
"""


def test_a_process_exits_cleanly_while_an_answer_is_overdue(mssql_url: str) -> None:
    """The driver would close the connection under the thread that uses it, and crash the process."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, mssql_url],
        env={**os.environ, "PYTHONPATH": python_path(*sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout.strip(), ended.returncode) == ("overdue", 0)
