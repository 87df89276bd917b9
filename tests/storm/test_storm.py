"""A few seeds of the storm; `make storm` runs many."""

from __future__ import annotations

import pytest

from storm.plan import KINDS, TAMPERING, draw
from storm.world import World, play


@pytest.mark.parametrize(
    "seed",
    [
        *(*range(6), 31, 69, 83, 99, 776, 4041, 4365, 4369, 5130, 5219, 5317, 6156),
        *(20072, 20634, 21261, 22233, 24455, 50187, 72534, 72626, 72822, 75116, 75760, 75848, 80148, 86567),
        *(100285, 101084, 201125, 400734, 625244, 483328716),
    ],
)
def test_a_seed_has_no_violation(seed: int) -> None:
    result = play(draw(seed))
    assert result.violation is None, "\n".join(result.story)
    assert result.fault_counts.total() > 20


def test_runs_are_deterministic() -> None:
    stories = []
    for _ in range(2):
        world = World(draw(2))
        world.run()
        stories.append(list(world.story))
    assert stories[0] == stories[1]


def test_each_kind_of_fault_can_happen() -> None:
    assert [kind for kind in (*KINDS, *TAMPERING) if not hasattr(World, f"_{kind}")] == []
