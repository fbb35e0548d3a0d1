"""Races that deserve a name; what each guards is said at its story in `directed`."""

from __future__ import annotations

import pytest

from tests.interleaving.explore import Suite
from tests.interleaving.stories import STORIES
from tests.interleaving.telling import tell

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("name", STORIES)
async def test_story(suite: Suite, name: str) -> None:
    """The story ends as it must, however the statements meet."""
    if not suite.stages[0].first.skips:
        pytest.skip("this server waits for rows that the stories want skipped")
    scene, story = STORIES[name]
    await tell(suite, scene, story)
