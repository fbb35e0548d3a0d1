"""Every pair of verbs on the same rows, in every order of their steps."""

from __future__ import annotations

import pytest

from tests.interleaving.explore import Suite, ran
from tests.interleaving.lease_scenes import LEASE_SCENES
from tests.interleaving.scenes import SCENES, Pair, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")

CASES = [
    pytest.param(scene, pair, id=f"{scene.name}: {pair[0]} × {pair[1]}")
    for scene in [*SCENES, *LEASE_SCENES]
    for pair in scene.pairs
]


@pytest.mark.parametrize(("scene", "pair"), CASES)
async def test_pair(suite: Suite, scene: Scene, pair: Pair) -> None:
    """Some serial order explains the answers and the rows; nothing waits that must not; no deadlock."""
    ran.update(await suite.explore(scene, pair))
