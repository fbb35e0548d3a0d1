"""The suite can fail: each broken statement is caught by the check that is named beside it."""

from __future__ import annotations

import pytest

from tests.interleaving.driver import Violation
from tests.interleaving.explore import Suite
from tests.interleaving.lease_scenes import LEASE_SCENES
from tests.interleaving.postgres import PostgresDriver
from tests.interleaving.postgres_mutants import MUTANTS, Check, Mutant
from tests.interleaving.scenes import SCENES
from tests.interleaving.stories import STORIES
from tests.interleaving.telling import tell

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run(suite: Suite, check: Check) -> None:
    """One story, or the pairs of these names in a scene."""
    if isinstance(check, str):
        await tell(suite, *STORIES[check])
        return
    scene_name, *names = check
    (scene,) = (scene for scene in [*SCENES, *LEASE_SCENES] if scene.name == scene_name)
    pairs = [pair for pair in scene.pairs if sorted(map(str, pair)) == sorted(names)]
    assert pairs, f"no such pair: {check}"
    for pair in pairs:
        await suite.explore(scene, pair)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_a_mutant_is_caught(suite: Suite, mutant: Mutant) -> None:
    """A check that no mistake can fail guards nothing."""
    if not isinstance(suite.stages[0], PostgresDriver):
        pytest.skip("the mutants are PostgreSQL's statements")
    with suite.mutated(mutant.verb, *mutant.changes), pytest.raises(Violation):
        await run(suite, mutant.caught_by)
