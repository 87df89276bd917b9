"""Colour-blind people can tell the members' colours apart."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from spark_ehbalance.ops.dashboard.page import _STYLE

#: What a missing kind of cones makes of linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.
_SEEN = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}

#: From linear RGB to Oklab, in which the least difference that is noticed is about 0.02.
_CONES = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
_LAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def lab(colour: str, seen: Any) -> Any:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return np.array(_LAB) @ np.cbrt(np.array(_CONES) @ np.clip(np.array(seen) @ linear, 0, 1))


@pytest.mark.parametrize(("first", "apart"), [(3, 0.2), (8, 0.07)])
@pytest.mark.parametrize("who", _SEEN)
def test_the_colours_are_apart_and_the_first_ones_most(who: str, first: int, apart: float) -> None:
    colours = re.findall(r"\.c\d \{ --c: (#\w{6})", _STYLE)
    assert len(colours) == 8
    seen = [lab(each, _SEEN[who]) for each in colours[:first]]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > apart
