"""Imports the driver, which is an extra; if it or its libraries are missing, the error says what to install."""

from __future__ import annotations

from reltask.errors import MissingExtra

LIBRARIES = "apt-get install libltdl7 libkrb5-3 libgssapi-krb5-2"
"""The libraries that the driver loads when it first connects, by their Debian and Ubuntu package names."""

try:
    import mssql_python
    from mssql_python.constants import ConstantsDDBC as Odbc
    from mssql_python.pooling import PoolingManager
except ModuleNotFoundError as absent:
    raise MissingExtra(
        "SQL Server needs the mssql-python driver.", remedy='Run: pip install "reltask[mssql]"'
    ) from absent
except ImportError as broken:
    raise MissingExtra(
        f"The mssql-python driver cannot be loaded: {broken}.", remedy=f"On Debian and Ubuntu run: {LIBRARIES}"
    ) from broken

__all__ = ["LIBRARIES", "Odbc", "PoolingManager", "mssql_python"]
