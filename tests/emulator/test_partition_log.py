"""The log of one partition."""

from __future__ import annotations

from itertools import count

import pytest

from spark_ehbalance.emulator.message import build_events
from spark_ehbalance.emulator.partition_log import PartitionLog
from tests.eventhub.encodings import SERVICE_ITEMS, compound, section, service_annotations, text


def read_all(log: PartitionLog, max_bytes: int) -> list[bytes]:
    read, number = list[bytes](), log.first_sequence_number
    while number < log.next_sequence_number:
        chunk = log.read(number, 1000, max_bytes)
        assert len(chunk.data) <= max_bytes or len(chunk.starts) == 2
        read += [bytes(chunk.data[a:b]) for a, b in zip(chunk.starts, chunk.starts[1:], strict=False)]
        number += len(chunk.starts) - 1
    return read


def test_events_are_read_in_chunks_before_and_after_trimming() -> None:
    log = PartitionLog(count())
    for number in range(50):
        log.append(build_events([b"%03d" % number * 50]))
    records = read_all(log, 4000)
    assert [b"%03d" % number * 50 in record for number, record in enumerate(records)] == [True] * 50
    last = log.last_offset, log.last_enqueued_ms
    log.trim(40)
    assert (log.first_sequence_number, log.next_sequence_number) == (40, 50)
    assert read_all(log, 1) == records[40:]
    log.trim(99)
    assert log.is_empty
    assert (log.last_offset, log.last_enqueued_ms) == last, "still reported for an empty partition"
    log.append(build_events([b"new"]))
    assert (log.first_sequence_number, log.next_sequence_number) == (50, 51)
    assert b"new" in read_all(log, 4000)[0]


@pytest.mark.parametrize("number", [0, 127, 128, 2**40])
@pytest.mark.parametrize("key", [None, "k", "k" * 200])
def test_service_annotations_follow_the_senders(key: str | None, number: int) -> None:
    (event,) = build_events([b"body"], partition_key=key)
    rendered = event.with_annotation("own", 7).render(-1, number, str(number * 1000), 1_700_000_000_000 + number)
    pairs = text(b"own", 0xA3) + b"\x55\x07"
    pairs += text(b"x-opt-partition-key", 0xA3) + text(key.encode()) if key else b""
    items = SERVICE_ITEMS + (4 if key else 2)
    assert rendered == section(0x72, compound(0xC1, items, pairs + service_annotations(number))) + event.tail
