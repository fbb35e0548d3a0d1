"""What happens where an extra is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules[{module!r}] = None
from reltask import App, ReltaskError
try:
    App({url!r}).status_sync()
except ReltaskError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "url", "said"),
    [
        ("asyncpg", "postgresql://h:1/d", 'PostgreSQL needs the asyncpg driver. Run: pip install "reltask[postgres]"'),
        ("mssql_python", "mssql://h/d", 'SQL Server needs the mssql-python driver. Run: pip install "reltask[mssql]"'),
    ],
)
def test_missing_driver_says_what_to_install(module: str, url: str, said: str) -> None:
    """A database whose driver is missing: the error names the command, before anything connects."""
    program = WITHOUT.format(module=module, url=url)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == f"MissingExtra {said}"


@pytest.mark.slow
def test_sqlite_needs_no_extra(tmp_path: object) -> None:
    """The embedded default works with nothing but the core installed."""
    program = WITHOUT.format(module="asyncpg", url=f"sqlite:///{tmp_path}/reltask.db") + "else:\n    print('fine')\n"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "fine"
