"""The values of `startingPosition` and `endingPosition`."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.starting_positions import (
    PartitionEnd,
    StartingPositions,
    UnresolvedPosition,
    parse_position,
)
from spark_ehbalance.query.options import stream_options
from tests.raising import raises

STRING = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k=;EntityPath=hub"
NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)

single_positions = st.one_of(
    st.sampled_from(list(PartitionEnd)),
    st.integers(0, 2**63 - 1).filter(lambda number: len(str(number)) != 13),
    st.datetimes(timezones=st.just(timezone.utc)).map(
        lambda time: time - timedelta(microseconds=time.microsecond % 1000)
    ),
)


def text_of(position: UnresolvedPosition) -> str:
    if isinstance(position, PartitionEnd):
        return position.value
    return position.isoformat() if isinstance(position, datetime) else str(position)


@given(
    st.dictionaries(st.integers(0, 40).map(str), single_positions),
    st.none() | single_positions,
    st.booleans(),
)
def test_position_per_partition(
    named: dict[str, UnresolvedPosition], others: UnresolvedPosition | None, as_numbers: bool
) -> None:
    everything = named if others is None else {**named, "*": others}
    raw = {
        partition: position if as_numbers and isinstance(position, int) else text_of(position)
        for partition, position in everything.items()
    }
    positions = StartingPositions.parse(json.dumps(raw))
    assert positions == StartingPositions(others, named)
    for partition, position in named.items():
        assert positions.position(partition) == position
    assert positions.position("not named") == (PartitionEnd.EARLIEST if others is None else others)
    if others is not None:
        assert StartingPositions.parse(text_of(others)) == StartingPositions(others)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("EARLIEST", PartitionEnd.EARLIEST),
        ("0042", 42),
        ("2026-01-31T12:00:00z", NOON),
        ("2026-01-31T14:00:00+02:00", NOON),
        ("2026-01-31 12:00:00.000001Z", NOON + timedelta(milliseconds=1)),
        ("2026-01-31T12:00:00.0000001Z", NOON + timedelta(milliseconds=1)),  # in .NET's format
        ("2026-01-31T13:00:00.0010000+01:00", NOON + timedelta(milliseconds=1)),
        ('{"next": 4711}', Position(4710)),
        ('{"next": 1769860800000}', Position(1769860799999)),
    ],
)
def test_spellings_of_the_same_position_are_equal(text: str, position: UnresolvedPosition) -> None:
    assert StartingPositions.parse(text).others == position


NO_ZONE = "a time with a time zone: {0}Z for UTC, or with an offset, such as {0}+01:00"
MILLISECONDS = (
    '2026-01-31T12:00:00.000Z for these milliseconds since 1970, or {"next": 1769860800000} for this sequence number'
)


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("2026-01-31 12:00:00", NO_ZONE.format("2026-01-31T12:00:00")),
        ("2026-01-31T12:00", NO_ZONE.format("2026-01-31T12:00:00")),
        ("2026-01-31", NO_ZONE.format("2026-01-31T00:00:00")),
        ("1769860800000", MILLISECONDS),
        (1769860800000, MILLISECONDS),
    ],
)
def test_ambiguous_position_is_rejected_with_both_interpretations(value: str | int, allowed: str) -> None:
    by_partition = json.dumps({"0": value, "*": "latest"})
    for text in (str(value), by_partition):
        with raises(OptionError, "EHB_OPTION_INVALID", option="startingPosition", value=repr(text), allowed=allowed):
            stream_options({"connectionString": STRING, "startingPosition": text})
    with pytest.raises(ValueError, match=re.escape(allowed)):  # `seek --to`
        parse_position(str(value))


def test_key_that_occurs_twice_is_rejected() -> None:
    for text in ('{"0": 5, "0": 6}', '{"0": {"next": 5, "next": 6}}'):
        with raises(OptionError, "EHB_OPTION_INVALID", value=repr(text), allowed=re.compile("occurs twice$")):
            stream_options({"connectionString": STRING, "startingPosition": text})


def test_long_position_is_truncated_and_deep_one_rejected() -> None:
    for text, begin in (("9" * 5000, "9" * 400), ('{"0":' * 100_000, '{"0":' * 50)):
        with raises(OptionError, "EHB_OPTION_INVALID", value=re.compile("^'" + re.escape(begin))) as caught:
            stream_options({"connectionString": STRING, "startingPosition": text})
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "-1",
        "1.5",
        str(2**63),
        "١٢",
        "12:00",
        "2026-01-31T12:00:00+05:60",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-13-01",
        "{",
        '["latest"]',
        '{"0": null}',
        '{"0": true}',
        '{"0": 1.0}',
        '{"0": {"next": 5, "offset": 7}}',
        '{"0": "first"}',
        f'{{"0": {2**63}}}',
        '{"0": NaN}',
    ],
)
def test_invalid_position_is_rejected_with_the_allowed_ones(text: str) -> None:
    allowed = re.compile("^earliest, latest, a sequence number.*2026-01-31T12:00:00Z")
    with raises(
        OptionError, "EHB_OPTION_INVALID", option="startingPosition", value=repr(text), allowed=allowed
    ) as caught:
        stream_options({"connectionString": STRING, "startingPosition": text})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("positions", ["earliest", '{"1": 5, "*": "latest"}', '{"0": 5, "1": 5}'])
def test_valid_positions_cover_all_partitions(positions: str) -> None:
    StartingPositions.parse(positions).check(("0", "1"))


@pytest.mark.parametrize(
    ("positions", "partition", "allowed"),
    [
        ('{"7": 5, "*": "latest"}', "'7'", "partitions 0, 1"),
        ('{"0": 5}', "1", 'a position for this partition, or for all others as "*"'),
    ],
)
def test_positions_of_unknown_or_missing_partitions_are_rejected(positions: str, partition: str, allowed: str) -> None:
    with raises(OptionError, "EHB_POSITION_INVALID", partition=partition, allowed=allowed):
        StartingPositions.parse(positions).check(("0", "1"))


@given(st.integers(0, 2_000_000), st.integers(0, 2_000))
def test_submillisecond_time_selects_the_same_events(microseconds: int, event_ms: int) -> None:
    """Events and Azure's client have times in milliseconds."""
    time, event = NOON + timedelta(microseconds=microseconds), NOON + timedelta(milliseconds=event_ms)
    found = parse_position(time.isoformat())
    assert isinstance(found, datetime)
    assert found.microsecond % 1000 == 0
    assert (event >= found) == (event >= time)


def test_latest_representable_time_cannot_be_rounded() -> None:
    with pytest.raises(ValueError, match="a time such as"):
        parse_position("9999-12-31T23:59:59.999999Z")
