"""Malformed events: the range fails, or continues with or without a row for every malformed event."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.message import EncodedEvent
from spark_ehbalance.errors import MalformedEventError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.query import receivers
from spark_ehbalance.query.range_reader import read_range
from tests.query.poison import NUMBERED, UNNUMBERED
from tests.query.support import HUB, hub_options
from tests.raising import raises


@pytest.fixture(autouse=True)
def worker(emulator: Emulator) -> Iterator[None]:
    """The open receivers of a worker process, closed after the test; creates the hub too."""
    emulator.add_hub(HUB, 1)
    yield
    receivers.RECEIVERS.close()


def fill(emulator: Emulator, layout: str, poison: EncodedEvent) -> None:
    """Fill a partition: a valid event for every `.` and `poison` for every `x`."""
    for number, kind in enumerate(layout):
        if kind == "x":
            emulator.append_encoded(HUB, "0", poison)
        else:
            emulator.append(HUB, 0, [b"%d" % number])


def read(emulator: Emulator, end: int, start: int = 0, **raw: object) -> pa.Table:
    begun = time.monotonic()
    batches = list(read_range(hub_options(emulator, **raw), OffsetRange("0", 0, start, end), None, None))
    assert time.monotonic() - begun < 30, "it has not waited for what never comes"
    return pa.Table.from_batches(batches) if batches else pa.table({"body": [], "sequenceNumber": []})


LAYOUTS = [".x.x.xx.", "xxxxx", "." * 50 + "x" + "." * 50 + "xx"]


@pytest.mark.parametrize(("layout", "gap"), [*((layout, 0) for layout in LAYOUTS), (".x...x.", 3)])
def test_malformed_events_are_skipped(
    emulator: Emulator, layout: str, gap: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Every malformed event is logged once, even next to a gap."""
    fill(emulator, layout, NUMBERED["unknown type"])
    if gap:
        emulator.compact(HUB, 0, gap, gap + 1)
    table = read(emulator, len(layout), onMalformed="skip", failOnDataLoss=False)
    sound = [number for number, kind in enumerate(layout) if kind == "." and not (gap and number == gap)]
    assert table["body"].to_pylist() == [b"%d" % number for number in sound]
    assert table["sequenceNumber"].to_pylist() == sound
    logged = [record.args for record in caplog.records if "Skipped malformed events" in record.getMessage()]
    assert sum(args[1] for args in logged if isinstance(args, tuple)) == layout.count("x")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("what", "layout"), [*((what, LAYOUTS[0]) for what in NUMBERED), *(("cut off", layout) for layout in LAYOUTS[1:])]
)
def test_malformed_events_are_kept_as_rows(emulator: Emulator, what: str, layout: str) -> None:
    fill(emulator, layout, NUMBERED[what])
    rows = read(emulator, len(layout), onMalformed="keep").to_pylist()
    assert len(rows) == len(layout)
    for number, (row, kind) in enumerate(zip(rows, layout, strict=True)):
        system = dict(row["systemProperties"])
        if kind == ".":
            assert (row["body"], row["sequenceNumber"], system) == (b"%d" % number, number, {})
            continue
        assert (row["body"], row["partition"], row["properties"]) == (None, "0", [])
        assert system.pop("ehbalance-malformed")
        raw = base64.b64decode(system.pop("ehbalance-raw"))
        assert NUMBERED[what].tail in raw
        assert (row["sequenceNumber"], row["enqueuedTime"] is None) == (number, False)
        assert row["offset"].encode() in raw
        assert not system


@pytest.mark.parametrize("policy", ["fail", "keep", "skip"])
@pytest.mark.parametrize("layout", ["x.", "..xx."])
def test_event_without_a_sequence_number_fails_the_range(emulator: Emulator, policy: str, layout: str) -> None:
    """A receiver that starts after the event does not receive it."""
    fill(emulator, layout, UNNUMBERED)
    before = layout.index("x")
    batches = read_range(hub_options(emulator, onMalformed=policy), OffsetRange("0", 0, 0, len(layout)), None, None)
    if before:
        assert next(batches)["sequenceNumber"].to_pylist() == [*range(before)]
    problem = re.compile(f"at {before} or later has no readable sequence number")
    with raises(MalformedEventError, "EHB_EVENT_MALFORMED", partition="0", problem=problem):
        next(batches)
    after = layout.rindex("x") + 1
    assert read(emulator, len(layout), after, onMalformed=policy)["sequenceNumber"].to_pylist() == [
        *range(after, len(layout))
    ]


@pytest.mark.parametrize("what", NUMBERED)
def test_malformed_event_fails_the_range_immediately(emulator: Emulator, what: str) -> None:
    fill(emulator, ".....x.", NUMBERED[what])
    batches = read_range(hub_options(emulator), OffsetRange("0", 0, 0, 7), None, None)
    assert next(batches)["sequenceNumber"].to_pylist() == [*range(5)]
    problem = re.compile("^event 5 is malformed: ")
    with raises(MalformedEventError, "EHB_EVENT_MALFORMED", partition="0", problem=problem) as caught:
        next(batches)
    assert "\n" not in str(caught.value)
    assert read(emulator, 5)["sequenceNumber"].to_pylist() == [*range(5)], "after the range it does not matter"


def test_next_range_continues_after_a_skipped_last_event(emulator: Emulator) -> None:
    fill(emulator, "..xx....x", NUMBERED["unknown type"])
    found = [
        number
        for start in range(0, 9, 3)
        for number in read(emulator, start + 3, start, onMalformed="skip")["sequenceNumber"].to_pylist()
    ]
    assert found == [0, 1, 4, 5, 6, 7]
