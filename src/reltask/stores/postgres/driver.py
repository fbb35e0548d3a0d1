"""Imports the driver, which is an extra; if it is missing, the error says what to install."""

from __future__ import annotations

from reltask.errors import MissingExtra

try:
    import asyncpg
except ImportError as absent:
    raise MissingExtra(
        "PostgreSQL needs the asyncpg driver.", remedy='Run: pip install "reltask[postgres]"'
    ) from absent

__all__ = ["asyncpg"]
