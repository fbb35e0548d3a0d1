"""Races that deserve a name; what each guards is said at its story in `directed`."""

from __future__ import annotations

import pytest

from tests.interleaving.directed import STORIES, tell
from tests.interleaving.explore import Suite

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("name", STORIES)
async def test_story(suite: Suite, name: str) -> None:
    """The story ends as it must, however the statements meet."""
    scene, story = STORIES[name]
    await tell(suite, scene, story)
