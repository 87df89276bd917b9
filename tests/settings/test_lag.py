"""Lag in events and seconds."""

from __future__ import annotations

from dataclasses import replace

from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position

LAG = Lag(next=11, end=15, unread_since_ms=4_000, at_ms=9_000)


def test_lag_in_events_and_seconds() -> None:
    assert (LAG.events, LAG.seconds(10_000)) == (4, 6.0)
    assert replace(LAG, unread_since_ms=None).seconds(10_000) is None, "it is not known"
    assert LAG.seconds(3_000) == 0.0, "by a clock that is late"


def test_lag_is_zero_without_a_backlog() -> None:
    lag = Lag(15, 15, None, 9_000)
    assert (lag.events, lag.seconds(10_000)) == (0, 0.0)


def test_later_checkpoint_clears_the_enqueued_time() -> None:
    lease = Lease("0", checkpoint=Position(12), lag=LAG)
    assert lease.current_lag == Lag(13, 15, None, 9_000)
    assert replace(lease, checkpoint=Position(10)).current_lag == LAG
    assert replace(lease, checkpoint=Position(20)).current_lag == Lag(21, 21, None, 9_000), (
        "the end was measured before"
    )


def test_lag_is_unknown_without_a_measurement_or_claim() -> None:
    assert Lease("0", checkpoint=Position(12)).current_lag is None
    assert Lease("0", lag=LAG).current_lag is None, "it was never claimed"
