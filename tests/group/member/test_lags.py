"""What is unread is written along with renewals, checkpoints and the leader's heartbeat."""

from __future__ import annotations

from collections.abc import Iterable

from spark_ehbalance.group.changes import Checkpoint, Heartbeat, Observe, Release, Renew, Transition
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.member.lags import with_lags
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.position import Position

ME, END, AT = Author("me", "run"), 20, 9_000
LEASES = {
    "0": Lease("0", "me", 2, checkpoint=Position(4)),
    "1": Lease("1", None, 3, checkpoint=Position(6)),
    "2": Lease("2", "dead", 4, renewal=8, checkpoint=Position(7), lag=Lag(8, 15, 4_000, 5_000)),
    "3": Lease("3", None, 1),
    "4": Lease("4", None, 1, checkpoint=Position(1)),
}
BEAT = Heartbeat(by=ME, at_ms=1)


def lag_of(partition: str, next: int) -> Lag | None:
    """A hub that tells nothing of partition 4, and does not know since when."""
    return None if partition == "4" else Lag(next, END, None, AT)


def written(*transitions: Transition, unowned: Iterable[str] = "1234") -> list[Transition]:
    return with_lags(transitions, LEASES, lag_of, lambda: unowned)


def test_renewals_and_checkpoints_say_what_is_unread_after_them() -> None:
    renew = Renew(by=ME, at_ms=1, partition="0", epoch=2)
    checkpoint = Checkpoint(by=ME, at_ms=1, partition="0", epoch=2, position=Position(11))
    release = Release(by=ME, at_ms=1, partition="0", epoch=2)
    lags = [getattr(each, "lag", None) for each in written(renew, checkpoint, release)]
    assert lags == [Lag(5, END, None, AT), Lag(12, END, None, AT), None]


def test_beside_a_heartbeat_also_what_nobody_reads_except_what_changes_hands() -> None:
    taken = Release(by=ME, at_ms=1, partition="1", epoch=3)
    assert [type(each) for each in written(BEAT, taken, unowned="12")] == [Heartbeat, Release, Observe]
    assert [each.partition for each in written(BEAT) if isinstance(each, Observe)] == ["1", "2"]
    assert written(taken) == [taken], "nothing is written that was not written before"


def test_what_a_former_owner_knew_of_the_same_event_stays() -> None:
    observed = next(each for each in written(BEAT, unowned="2") if isinstance(each, Observe))
    assert observed.lag == Lag(8, END, 4_000, AT)
    assert observed.invalid(LEASES["2"]) is None
    assert observed.invalid(Lease("2", "dead", 4, renewal=9)) == "owned by dead", "it lives"
