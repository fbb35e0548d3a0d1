"""The driver, which is an extra: whoever lacks it, or a library that it needs, hears what to install."""

from __future__ import annotations

from reltask.errors import MissingExtra

LIBRARIES = "apt-get install libltdl7 libkrb5-3 libgssapi-krb5-2"
"""What the driver loads when it first connects, by the names that Debian and Ubuntu give them."""

try:
    import mssql_python
except ModuleNotFoundError as absent:
    raise MissingExtra(
        "SQL Server needs the mssql-python driver.", remedy='Run: pip install "reltask[mssql]"'
    ) from absent
except ImportError as broken:
    raise MissingExtra(
        f"The mssql-python driver cannot be loaded: {broken}.", remedy=f"On Debian and Ubuntu run: {LIBRARIES}"
    ) from broken

__all__ = ["LIBRARIES", "mssql_python"]
