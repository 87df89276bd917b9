"""A few random groups of an hour; `python -m tests.simulation.random_groups` plays many."""

from __future__ import annotations

import pytest

from tests.simulation.random_groups import play


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_a_random_group_loses_nothing_has_one_owner_and_ends_even(seed: int) -> None:
    counts, story = play(seed)
    assert not story, story
    assert counts["pause"] > 0
