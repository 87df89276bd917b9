"""Plain consumers share a hub with streaming queries without a JVM; `tests/spark/test_consumers.py` has Spark's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.consumer.mixed import Mixed, share_through_everything


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_consumers_and_queries_share_a_hub(emulator: Emulator, tmp_path: Path, kind: str) -> None:
    mixed = Mixed(emulator, tmp_path)
    try:
        twice = share_through_everything(mixed, kind, kind)
    finally:
        mixed.close()
    print(f"{kind}: of {sum(mixed.group.everything().values())} events {len(twice)} were read twice")


def test_a_consumer_that_was_suspended_is_disconnected_and_comes_back(emulator: Emulator, tmp_path: Path) -> None:
    mixed = Mixed(emulator, tmp_path)
    try:
        mixed.query("query")
        mixed.consumer("consumer", "sync")
        mixed.wait_shares(6, 6)
        mixed.signal("consumer", signal.SIGSTOP)
        mixed.wait_shares(12)
        mixed.signal("consumer", signal.SIGCONT)
        mixed.wait_shares(6, 6)
        mixed.everything_was_read()
        seen = mixed.seen()
        assert set(seen["query"].values()) == {1}, "it has had each partition once"
        # What it had not checkpointed when it was suspended is read again, by itself if the query has not come to it.
        assert max(seen["consumer"].values()) <= 2
        print(f"{len(mixed.duplicates())} events were read twice")
    finally:
        mixed.close()
