"""Spark offsets: they survive a round trip through JSON, and foreign offsets are rejected."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.query.offsets import EpochPosition, HubReference, StreamOffset, TableReference
from tests.raising import raises

numbers = st.integers(0, 2**63 - 1)


texts = st.text(max_size=5)


@st.composite
def offsets(draw: st.DrawFn) -> StreamOffset:
    partitions = draw(st.lists(st.integers(0, 2000).map(str), unique=True, max_size=5))
    ranges = {}
    for p in partitions:
        start, end = sorted((draw(numbers), draw(numbers)))
        ranges[p] = OffsetRange(p, draw(numbers), start, end, draw(numbers))
    table = draw(st.none() | st.builds(TableReference, texts, texts))
    hub = draw(st.none() | st.builds(HubReference, texts, texts, st.none() | numbers))
    others = draw(st.dictionaries(texts, st.builds(EpochPosition, numbers, numbers), max_size=3))
    checkpoints = draw(st.dictionaries(texts, numbers, max_size=3))
    owner, group, lineage, run = (draw(texts) for _ in range(4))
    batch, begun = draw(numbers), draw(numbers)
    return StreamOffset(owner, ranges, group, table, hub, others, lineage, batch, run, begun, checkpoints)


@given(offsets(), st.randoms(use_true_random=False))
def test_offsets_survive_json_that_is_independent_of_partition_order(offset: StreamOffset, random: Any) -> None:
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    shuffled = list(offset.ranges.items())
    random.shuffle(shuffled)
    assert json.dumps(replace(offset, ranges=dict(shuffled)).to_json()) == text


def test_partitions_are_sorted_numerically() -> None:
    offset = StreamOffset(
        "me", {p: OffsetRange(p, 1, 2, 3) for p in ("10", "9", "1", "x")}, "", TableReference("7", "/leases")
    )
    assert json.dumps(offset.to_json()) == (
        '{"format": 4, "group": "", "lineage": "", "owner": "me", '
        '"partitions": {"1": {"epoch": 1, "from": 2, "to": 3}, '
        '"9": {"epoch": 1, "from": 2, "to": 3}, "10": {"epoch": 1, "from": 2, "to": 3}, '
        '"x": {"epoch": 1, "from": 2, "to": 3}}, "table": {"id": "7", "location": "/leases"}}'
    )


def test_offset_in_an_earlier_checkpoint_is_read() -> None:
    """Written before the first release. Missing fields get defaults, so a renamed one would be lost silently."""
    written = (
        '{"eventHub": {"name": "hub", "namespace": "localhost", "created_ms": 5}, "batch": 3, '
        '"checkpoints": {"0": 10}, "firstStart": {"at_ms": 6, "partitions": 2}, "format": 4, "group": "4ac4a0197a8c", '
        '"held": {"1": {"epoch": 2, "next": 7}}, "lineage": "l", "owner": "vm-0", '
        '"partitions": {"0": {"epoch": 1, "from": 20, "to": 25, "since": 8, "fromOffset": "1:9", "toOffset": "1:8"}}, '
        '"run": "r", "table": {"id": "t", "location": "/leases"}, "tableBegun": 2}'
    )
    assert json.dumps(StreamOffset.from_json(json.loads(written)).to_json()) == written


@pytest.mark.parametrize("format", [3, 5])
def test_offset_in_another_format_is_rejected(format: int) -> None:
    other = StreamOffset("me").to_json() | {"format": format, "partitions": "whatever"}
    with raises(EhBalanceError, "EHB_CHECKPOINT_FOREIGN", problem=re.compile(f"format {format}, .* format 4")):
        StreamOffset.from_json(other)


def foreign_offset() -> AbstractContextManager[object]:
    return raises(EhBalanceError, "EHB_CHECKPOINT_FOREIGN", problem=re.compile("another source"))


@pytest.mark.parametrize(
    "foreign",
    [
        {},
        {"hub": {"0": 123, "1": 456}},  # written by Spark's Kafka source or the Scala connector
        {"logOffset": 3},
        {"format": 4},
        {"format": 4, "owner": "me", "partitions": {"0": {"epoch": 1}}},
        {"format": 4, "partitions": {}},
        StreamOffset("me", {"0": OffsetRange("0", 1, 2, 1)}).to_json(),  # it ends before it starts
        {"format": 4, "owner": "me", "partitions": {}, "table": 5},
        {"format": 4, "owner": "me", "partitions": {}, "table": {"id": "7"}},
        [],
        None,
    ],
)
def test_offset_of_another_source_is_rejected(foreign: Any) -> None:
    with foreign_offset():
        StreamOffset.from_json(foreign)


WRONG = [True, False, -1, 2**63, 10**400, 1.0, 1.5, float("nan"), float("inf"), "1", None, [], [1], {}, {"a": {}}]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("field", ["epoch", "from", "to", "format", "owner", "group", "partition", "partitions"])
def test_values_of_the_wrong_type_are_rejected(field: str, value: Any) -> None:
    written: dict[str, Any] = StreamOffset("me", {"0": OffsetRange("0", 1, 0, 2**63 - 1)}).to_json()
    if field in ("epoch", "from", "to"):
        written["partitions"]["0"][field] = value
    elif field == "partition":
        written["partitions"]["0"] = value
    elif not (field in ("owner", "group") and isinstance(value, str)) and not (field == "partitions" and value == {}):
        written[field] = value
    else:
        return
    with foreign_offset():
        StreamOffset.from_json(written)
