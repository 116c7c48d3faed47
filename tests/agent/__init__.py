import pytest

pytest.register_assert_rewrite("tests.agent.stories", "tests.agent.world")
