"""Imports the driver, which is an extra; if it is missing, the error says what to install.

The driver reads the catalog when it first meets an array type, with a query whose functions are found by the search
path. On a user's path that would be another way to run foreign code, so it is given the array types of the statements
here, by the numbers that they have in every PostgreSQL. That also saves each new connection a round trip.
"""

from __future__ import annotations

from reltask.errors import MissingExtra

try:
    import asyncpg
except ImportError as absent:
    raise MissingExtra(
        "PostgreSQL needs the asyncpg driver.", remedy='Run: pip install "reltask[postgres]"'
    ) from absent

__all__ = ["asyncpg", "know_arrays"]

_ARRAYS = {
    "bool": (16, 1000),
    "int2": (21, 1005),
    "int4": (23, 1007),
    "int8": (20, 1016),
    "float8": (701, 1022),
    "timestamptz": (1184, 1185),
    "interval": (1186, 1187),
    "uuid": (2950, 2951),
}
"""The numbers of an element's type and of its array."""


def know_arrays(connection: asyncpg.Connection) -> None:
    """Give the driver what its query would find."""
    nothing = dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames"))
    types = [
        {"oid": array, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "elemtype": element, "elemdelim": ","}
        for name, (element, array) in _ARRAYS.items()
    ]
    settings = connection._protocol.get_settings()  # noqa: SLF001 - the driver has no public function for it
    settings.register_data_types([{**nothing, **one} for one in types])
