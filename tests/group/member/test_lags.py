"""Lag is recorded with renewals and checkpoints."""

from __future__ import annotations

from spark_ehbalance.group.changes import Checkpoint, Release, Renew
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.member.lags import with_lags
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.position import Position

ME, END, AT = Author("me", "run"), 20, 9_000
LEASES = {
    "0": Lease("0", "me", 2, checkpoint=Position(4)),
    "1": Lease("1", "me", 2, checkpoint=Position(7), lag=Lag(8, 15, 4_000, 5_000)),
    "2": Lease("2", "me", 2, checkpoint=Position(1)),
}


def find_lag(partition: str, next: int) -> Lag | None:
    """Lag from a hub that reports nothing about partition 2; the age of the backlog is unknown."""
    return None if partition == "2" else Lag(next, END, None, AT)


def test_renewals_and_checkpoints_record_the_lag() -> None:
    written = [
        *(Renew(by=ME, at_ms=1, partition=partition, epoch=2) for partition in LEASES),
        Checkpoint(by=ME, at_ms=1, partition="0", epoch=2, position=Position(11)),
        Release(by=ME, at_ms=1, partition="0", epoch=2),
    ]
    lags = [getattr(transition, "lag", None) for transition in with_lags(written, LEASES, find_lag)]
    known_earlier = Lag(8, END, 4_000, AT)
    assert lags == [Lag(5, END, None, AT), known_earlier, None, Lag(12, END, None, AT), None]
