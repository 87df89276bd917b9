"""The number of events that a batch reads per partition, their start, and the number of tasks."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import MAX_PIECES, OffsetRange, limit_by_backlog, retained_start, split
from tests.raising import raises

backlogs_of_any_size = st.dictionaries(st.integers(0, 99).map(str), st.integers(0, 10**12), max_size=12)
small_backlogs = st.dictionaries(st.integers(0, 20).map(str), st.integers(0, 30), max_size=10)


@given(backlogs_of_any_size | small_backlogs, st.integers(1, 10**6) | st.integers(1, 50))
def test_limit_is_used_up_in_proportion_and_no_partition_starves(backlogs: dict[str, int], limit: int) -> None:
    """Every partition gets one event first; the rest is proportional to the backlogs, within one event."""
    counts = limit_by_backlog(backlogs, limit)
    assert counts.keys() == backlogs.keys()
    total, waiting = sum(backlogs.values()), sum(map(bool, backlogs.values()))
    assert sum(counts.values()) == min(max(limit, waiting), total)
    for partition, backlog in backlogs.items():
        assert min(1, backlog) <= counts[partition] <= backlog
        if backlog and limit < total:
            share = 1 + max(0, limit - waiting) * (backlog - 1) / (total - waiting)
            assert abs(counts[partition] - share) < 1 + 1e-6
    for one, other in itertools.pairwise(sorted(backlogs, key=backlogs.__getitem__)):
        assert counts[one] <= counts[other] + 1
    assert limit_by_backlog(backlogs, None) == backlogs


@st.composite
def some_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    lengths = draw(st.lists(st.integers(1, 20) | st.integers(1, 10**9), max_size=12))
    return [
        OffsetRange(str(partition), draw(st.integers(0, 9)), start := draw(st.integers(0, 10**12)), start + length)
        for partition, length in enumerate(lengths)
    ]


@given(some_ranges(), st.integers(1, 60))
def test_pieces_cover_the_ranges_exactly_and_reach_the_minimum(ranges: list[OffsetRange], min_pieces: int) -> None:
    pieces = split(ranges, min_pieces)
    assert [piece.partition for piece in pieces] == sorted((piece.partition for piece in pieces), key=int)
    counts = []
    for whole in ranges:
        mine = [piece for piece in pieces if piece.partition == whole.partition]
        counts.append((len(whole), len(mine)))
        assert 1 <= len(mine) <= MAX_PIECES
        assert {piece.epoch for piece in mine} == {whole.epoch}
        edges = [mine[0].start, *(piece.end for piece in mine)]
        assert [piece.start for piece in mine] == edges[:-1]
        assert (edges[0], edges[-1]) == (whole.start, whole.end)
        assert 0 < min(map(len, mine)) <= max(map(len, mine)) <= min(map(len, mine)) + 1
    possible = sum(min(len(whole), MAX_PIECES) for whole in ranges)
    assert len(pieces) == max(len(ranges), min(min_pieces, possible))
    assert all(one <= other for (less, one), (more, other) in itertools.pairwise(sorted(counts)) if less < more)


def test_ranges_stay_whole_without_a_minimum() -> None:
    ranges = [OffsetRange("0", 1, 0, 1000), OffsetRange("1", 1, 5, 6)]
    assert split(ranges, None) == ranges
    assert split(ranges, 1) == ranges
    assert split([], 5) == []


NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
USED = PartitionState(10, 20, "x", NOW)
TRIMMED_TO_THE_END = PartitionState(20, 20, "x", NOW)
NEVER_USED = PartitionState(0, 0, None, None)


@pytest.mark.parametrize(
    ("state", "position", "found", "why"),
    [
        *((USED, position, position, "") for position in (10, 15, 20)),
        (TRIMMED_TO_THE_END, 20, 20, ""),
        (NEVER_USED, 0, 0, ""),
        (USED, 9, 10, "aged out"),
        (TRIMMED_TO_THE_END, 19, 20, "aged out"),
        (USED, 21, 10, "recreated"),
        (NEVER_USED, 1, 0, "recreated"),
    ],
)
def test_position_is_clamped_to_the_retained_events(state: PartitionState, position: int, found: int, why: str) -> None:
    start, warning = retained_start("3", position, state, False)
    assert start == found
    assert why in warning
    if why:
        with raises(DataLossError, "EHB_EVENTS_LOST", partition="3", position=position, reason=re.compile(why)):
            retained_start("3", position, state, True)
    else:
        assert (warning, retained_start("3", position, state, True)) == ("", (position, ""))
