"""Positions: what the text of `startingPosition` and `endingPosition` means."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.errors import OptionError
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.values.starting_positions import EARLIEST, LATEST, Edge, StartingPositions, UnresolvedPosition

STRING = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k=;EntityPath=hub"
NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)

places = st.one_of(
    st.sampled_from(list(Edge)),
    st.integers(0, 2**63 - 1),
    st.datetimes(timezones=st.just(timezone.utc)),
)


def text_of(place: UnresolvedPosition) -> str:
    if isinstance(place, Edge):
        return place.value
    return place.isoformat() if isinstance(place, datetime) else str(place)


@given(places)
def test_one_place_for_all(place: UnresolvedPosition) -> None:
    positions = StartingPositions.parse(text_of(place))
    assert positions == StartingPositions(place)
    assert positions.of("0") == positions.of("17") == place


@given(st.dictionaries(st.integers(0, 40).map(str), places), st.none() | places, st.booleans())
def test_a_place_for_each(
    named: dict[str, UnresolvedPosition], others: UnresolvedPosition | None, as_numbers: bool
) -> None:
    everything = named if others is None else {**named, "*": others}
    raw = {
        partition: place if as_numbers and isinstance(place, int) else text_of(place)
        for partition, place in everything.items()
    }
    positions = StartingPositions.parse(json.dumps(raw))
    assert positions == StartingPositions(others, named)
    for partition, place in named.items():
        assert positions.of(partition) == place
    assert positions.of("not named") == (Edge.EARLIEST if others is None else others)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("EARLIEST", Edge.EARLIEST),
        ("Latest", Edge.LATEST),
        ("0", 0),
        ("0042", 42),
        (str(2**63 - 1), 2**63 - 1),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31T12:00:00z", NOON),
        ("2026-01-31T12:00:00+00:00", NOON),
        ("2026-01-31T14:00:00+02:00", NOON),
        ("2026-01-31T12:00:00", NOON),
        ("2026-01-31 12:00:00.000001", NOON + timedelta(microseconds=1)),
        ("2026-01-31", NOON - timedelta(hours=12)),
    ],
)
def test_forms(text: str, place: UnresolvedPosition) -> None:
    assert StartingPositions.parse(text).others == place


def test_a_time_without_zone_is_utc() -> None:
    place = StartingPositions.parse("2026-01-31T12:00:00").others
    assert isinstance(place, datetime)
    assert place.tzinfo is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "-1",
        "+1",
        "1.5",
        str(2**63),
        "9" * 5000,
        "١٢",
        "12:00",
        "2026-13-01",
        "2026-01-31T25:00:00Z",
        "{",
        "{}}",
        "[1]",
        '["latest"]',
        '{"0": null}',
        '{"0": true}',
        '{"0": -1}',
        '{"0": 1.0}',
        '{"0": [1]}',
        '{"0": {"1": 2}}',
        '{"0": "first"}',
        '{"0": ""}',
        '{"*": null}',
        f'{{"0": {2**63}}}',
        '{"0": NaN}',
    ],
)
def test_a_wrong_position_names_the_option_the_value_and_what_is_allowed(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        stream_options({"connectionString": STRING, "startingPosition": text})
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(
        f"option startingPosition={text!r} is wrong: allowed is earliest, latest, a sequence number"
    )
    assert "2026-01-31T12:00:00Z" in message


def test_a_partition_that_the_hub_does_not_have() -> None:
    with pytest.raises(OptionError, match="partition '7': the hub has 0, 1"):
        StartingPositions.parse('{"7": 5, "*": "latest"}').check(("0", "1"))


def test_a_partition_that_is_left_out() -> None:
    positions = StartingPositions.parse('{"0": 5}')
    with pytest.raises(OptionError, match=r'no position is given for partition 1: name it, or all others as "\*"'):
        positions.check(("0", "1"))
    positions.check(("0",))


@pytest.mark.parametrize("positions", [EARLIEST, LATEST, StartingPositions.parse('{"1": 5, "*": "latest"}')])
def test_positions_that_fit(positions: StartingPositions) -> None:
    positions.check(("0", "1"))
