"""A few random groups, for an hour each; `python -m tests.simulation.random_groups` runs many."""

from __future__ import annotations

import pytest

from tests.simulation.random_groups import play


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_random_group_violates_no_invariant(seed: int) -> None:
    counts, story = play(seed)
    assert not story, story
    assert counts["pause"] > 0
