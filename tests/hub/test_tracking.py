"""What the service says of the newest event with each message."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub import watcher as watcher_module
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.poll_schedule import PollIntervals, PollSchedule
from spark_ehbalance.hub.watcher import HubWatcher
from spark_ehbalance.hub.wire.decoder import Decoder
from spark_ehbalance.hub.wire.tracking import Newest, newest, without_annotations
from tests.hub.encodings import compound, in_buffer, long, messages, section, text, timestamp
from tests.hub.receiving import address_of, reading
from tests.hub.test_watcher import Start, start
from tests.source.support import HUB, receive

__all__ = ["start"]

TIME_MS = 1_790_000_000_000
NEWEST = Newest(4711, "4711000", TIME_MS)


def said(number: bytes = long(4711), offset: bytes = text(b"4711000"), wide: bool = False) -> bytes:
    """Delivery annotations as the service sends them."""
    pairs = text(b"last_enqueued_sequence_number", 0xA3) + number + text(b"last_enqueued_offset", 0xA3) + offset
    pairs += text(b"last_enqueued_time_utc", 0xA3) + timestamp(TIME_MS)
    pairs += text(b"runtime_info_retrieval_time_utc", 0xA3) + timestamp(TIME_MS + 1)
    return section(0x71, compound(0xC1, 8, pairs, wide))


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_said_is_read(wide: bool) -> None:
    assert newest(said(wide=wide) + b"the rest") == NEWEST


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\x53\x71",
        said()[:-3],
        said(number=long(-1)),
        said(number=text(b"many")),
        said(offset=b"\x40"),
        section(0x71, compound(0xC1, 0, b"")),
        section(0x71, b"\x40"),
        section(0x72, compound(0xC1, 0, b"")),
    ],
)
def test_of_anything_else_nothing_is_known(message: bytes) -> None:
    assert newest(message) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([b"", said(), said(wide=True), said(offset=text(b"7"))]), messages())))
def test_rows_are_the_same_without_it(sent: list[tuple[bytes, bytes]]) -> None:
    plain = Decoder("0", False).record_batch(in_buffer([message for _, message in sent]))
    annotated = without_annotations(in_buffer([before + message for before, message in sent]))
    assert Decoder("0", False).record_batch(annotated).batch.equals(plain.batch)


@settings(deadline=None)
@given(st.binary(max_size=12))
def test_a_size_beyond_the_message_leaves_it_as_it_is(rest: bytes) -> None:
    message = b"\x00\x53\x71" + rest
    (left,) = without_annotations(in_buffer([message]))
    assert message.endswith(left)
    assert left


def test_a_receiver_that_tracks_gets_the_same_rows_and_the_newest_event(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"x" * size for size in range(400)], {"n": 1})
    with reading(address_of(emulator), prefetch=1000) as plain, reading(address_of(emulator), track=True) as tracking:
        rows = receive(plain, 400, 400)
        assert receive(tracking, 400, 400).equals(rows)
        state = emulator.partition_state(HUB, 0)
        assert plain.newest is None
        assert tracking.newest == Newest(399, state.last_offset, state.last_enqueued_ms)


def test_the_watcher_takes_what_receivers_were_told(emulator: Emulator, start: Start) -> None:
    emulator.append(HUB, 0, [b"x"] * 3)
    watcher = start(schedule=PollSchedule(PollIntervals(listing=3600.0)))
    watcher.note_newest({"0": Newest(9, "nine", TIME_MS), "1": Newest(0, "zero", TIME_MS), "7": NEWEST})
    at = datetime.fromtimestamp(TIME_MS / 1000, timezone.utc)
    assert watcher.states() == {"0": PartitionState(0, 10, "nine", at), "1": PartitionState(0, 1, "zero", at)}
    watcher.note_newest({"0": Newest(5, "five", TIME_MS)})
    assert watcher.states()["0"].end == 10, "what is older counts for nothing"


def test_an_older_answer_of_the_hub_does_not_take_news_back(emulator: Emulator, start: Start) -> None:
    emulator.append(HUB, 0, [b"x"] * 3)
    watcher = start()
    watcher.note_newest({"0": NEWEST})
    watcher.refresh()
    assert watcher.states()["0"].end == NEWEST.sequence_number + 1
    emulator.append(HUB, 0, [b"x"] * 5000)
    watcher.refresh()
    assert watcher.states()["0"].end == 5003


def test_a_hub_that_stays_behind_the_news_was_made_anew(
    emulator: Emulator, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_module, "_TRUST_RECEIVERS", 0.0)
    emulator.append(HUB, 0, [b"x"] * 3)
    watcher: HubWatcher = start()
    watcher.note_newest({"0": NEWEST})
    watcher.refresh()
    assert watcher.states()["0"].end == 3
