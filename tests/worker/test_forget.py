"""Forgetting steps by a job's handle: what an operator reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from reltask import App
from reltask.errors import UsageError
from reltask.stores.sqlite.store import SqliteStore
from tests.store.store_harness import Now, SqliteBackend, StoreHarness


async def test_a_step_with_living_children_is_refused_in_words(tmp_path: Path) -> None:
    """Nothing is forgotten until its children have ended. An unknown step is no error: 0 were removed."""
    path, now = str(tmp_path / "jobs.db"), Now()
    store = SqliteStore(path, now=now)
    await store.open()
    harness = StoreHarness(store, now, SqliteBackend(path))
    parent = await harness.parent(1)
    app = App(f"sqlite:///{path}")
    job = app.job(parent.job_id)
    with pytest.raises(UsageError, match="some of its children have not ended"):
        await job.forget("labels")
    assert await harness.complete(await harness.claim_child())
    assert await job.forget("unknown") == 0
    assert await job.forget("labels") == 1
    app.close()
    await store.close()
