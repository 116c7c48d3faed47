"""Results of the stories that take an interval or more, begun before the first test of this folder."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.agent.stories import STORIES, Story


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_that(story: Story, stories: dict[Story, Future[None]]) -> None:
    stories[story].result()
