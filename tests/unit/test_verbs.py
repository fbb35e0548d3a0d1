"""The table of verbs: what a lost answer means for each."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import reltask
from reltask.stores.store import Store
from reltask.stores.verbs import READ, VERBS, WAITING

BELOW_THE_SEAM = {"complete_one_offs", "read_schema", "read_surplus", "renew_partitions"}
"""Statements that a store sends for a verb with another name."""
STORES = Path(reltask.__file__).parent / "stores"
WRITES = re.compile(
    r"\b(insert\s+into|update|delete\s+(top\s*\(\S+\)\s+)?from|merge)\s+reltask[._]|\bupdate\s+\w+\s+set\b|\bdelete\s+\w+\s+from\b",
    re.IGNORECASE,
)
"""The last two are T-SQL's writes to an alias."""


def test_the_table_has_every_verb_of_the_seam() -> None:
    """A new verb has to say what a lost answer means."""
    verbs = {name for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction)} - {"close"}
    assert set(VERBS) - BELOW_THE_SEAM == verbs


@pytest.mark.parametrize("path", sorted(STORES.glob("*/sql/*.sql")), ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_what_is_called_a_read_writes_nothing(path: Path) -> None:
    """A statement that the policy may send any number of times changes no row."""
    if VERBS.get(path.stem) == READ:
        assert not WRITES.search(path.read_text(encoding="utf-8")), path


def test_statements_that_skip_locked_rows_need_no_patience() -> None:
    """What a worker sends to claim, renew and settle is not among the few statements that may wait at once."""
    headers = {
        verb: (STORES / "postgres" / "sql" / f"{verb}.sql").read_text("utf-8").split("\n\n")[0] for verb in WAITING
    }
    assert not [verb for verb, header in headers.items() if re.search(r"never\s+(--\s+)?waits|are skipped", header)]


def test_the_rule_sees_a_write() -> None:
    """The pattern above finds the writes of all three dialects."""
    assert all(
        WRITES.search((STORES / store / "sql" / f"{verb}.sql").read_text(encoding="utf-8"))
        for store in ("mssql", "postgres", "sqlite")
        for verb in ("enqueue_jobs", "claim_jobs", "prune_runs", "stop_worker")
    )
