"""Plain consumers share a hub with streaming queries without a JVM."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from spark_ehbalance.emulator import Emulator
from tests.consumers.mixed import Mixed, share_through_everything


def test_consumers_and_queries_share_a_hub(emulator: Emulator, tmp_path: Path) -> None:
    with Mixed(emulator, tmp_path) as mixed:
        share_through_everything(mixed, "sync", "async")


def test_a_consumer_that_was_suspended_is_disconnected_and_comes_back(emulator: Emulator, tmp_path: Path) -> None:
    with Mixed(emulator, tmp_path) as mixed:
        query, consumer = mixed.query("query"), mixed.consumer("consumer", "sync")
        mixed.wait_shares(6, 6)
        consumer.process.send_signal(signal.SIGSTOP)
        mixed.wait_shares(12)
        consumer.process.send_signal(signal.SIGCONT)
        mixed.wait_shares(6, 6)
        mixed.everything_was_read()
        assert len({*query.seen()}) == len(query.seen()), "it has had each partition once"
        # What it had not checkpointed when it was suspended is read again, by itself if the query has not come to it.
        assert max(Counter(consumer.seen()).values()) <= 2
