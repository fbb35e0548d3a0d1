"""The driver, which is an extra: whoever lacks it hears what to install."""

from __future__ import annotations

from reltask.errors import MissingExtra

try:
    import asyncpg
except ImportError as absent:
    raise MissingExtra(
        "PostgreSQL needs the asyncpg driver.", remedy='Run: pip install "reltask[postgres]"'
    ) from absent

__all__ = ["asyncpg"]
