"""The example of an encrypting codec: what it says about rotation is true."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.fernet import Fernet

from reltask.testing import drain
from tests.docs.pages import ROOT

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
CARD = "4111-1111-1111-1111"


@pytest.mark.slow
def test_the_key_is_rotated_in_three_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each, jobs of the one before are run; the last reads nothing of the old key."""
    monkeypatch.setenv("SHOP_DATABASE", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setenv("SHOP_HASH_KEY", "ab" * 32)

    def deploy(keys: str) -> ModuleType:
        monkeypatch.setenv("SHOP_KEYS", keys)
        spec = importlib.util.spec_from_file_location("encryption", ROOT / "examples/encryption.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    deployments = [deploy(keys) for keys in (OLD, f"{OLD},{NEW}", f"{NEW},{OLD}", NEW)]
    for before, after in itertools.pairwise(deployments):
        job = before.charge.enqueue_sync(CARD, 995)  # a process of the deployment before is still running
        asyncio.run(drain(after.app))
        result = after.charge.job(id=job.id).result_sync(timeout="20s")
        assert result == "charged 995 to the card that ends with 1111"
        before.app.close()
    deployments[-1].app.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        stored = [str(row) for row in file.execute("select args, result from reltask_runs")]
    assert len(stored) == 3
    assert not [row for row in stored if CARD in row or "charged" in row]
