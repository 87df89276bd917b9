"""The accounting of the chaos run: missing events, duplicates, and the faults that explain them."""

from __future__ import annotations

import pytest

from chaos.account import GRACE, Fault, WrittenBatch, account, account_target
from chaos.moves import idle_time

SENT = {"0": [10, 11, 12], "1": [20]}


def batch(owner: str, numbers: range, began: float, written: float, *, epoch: int = 1, run: str = "r") -> WrittenBatch:
    events = [("0", number, str(SENT["0"][number])) for number in numbers]
    return WrittenBatch(owner, run, 0, began, written, {"0": epoch}, events)


OTHER = WrittenBatch("b.1", "s", 0, 0.0, 1.0, {"1": 1}, [("1", 0, "20")])


def test_events_are_read_once_and_none_is_missing_or_wrong() -> None:
    result = account([batch("a.1", range(3), 0, 1), OTHER], SENT, [])
    assert result.passed
    assert (result.sent, result.read, result.duplicates, result.missing) == (4, 4, 0, [])
    wrong = WrittenBatch("b.1", "s", 0, 0.0, 1.0, {"1": 1, "9": 1}, [("1", 0, "21"), ("1", 1, "22"), ("9", 0, "1")])
    result = account([batch("a.1", range(2), 0, 1), wrong], SENT, [])
    assert (result.foreign, result.missing, result.passed) == (3, [("0", 2), ("1", 0)], False)


def test_an_unexplained_duplicate_fails() -> None:
    twice = [batch("a.1", range(3), 0, 1), batch("b.1", range(1, 3), 2, 3, epoch=2, run="t"), OTHER]
    result = account(twice, SENT, [Fault("SIGKILL", "c", 0.5, 0.5)])
    assert result.duplicates == 2
    assert not result.explained
    assert len(result.unexplained) == 1
    assert "partition 0, 1 to 2 (2): a.1 run r batch 0 epoch 1" in result.unexplained[0]
    assert not result.passed


@pytest.mark.parametrize(
    ("fault", "explains"),
    [
        (Fault("SIGKILL", "a", 1.5, 1.5), True),  # in the middle of the batch
        (Fault("SIGKILL", "a", 2 + GRACE - 0.1, 2 + GRACE - 0.1), True),  # written, not yet checkpointed
        (Fault("SIGKILL", "a", 2 + GRACE + 0.1, 2 + GRACE + 0.1), False),
        (Fault("SIGSTOP", "a", -30, -20), False),
        (Fault("SIGSTOP", "b", 1.5, 9.5), True),  # either of the two copies
        (Fault("lease table unreachable", None, 1.5, 1.6), False),
    ],
)
def test_which_faults_explain_a_duplicate(fault: Fault, explains: bool) -> None:
    twice = [batch("a.1", range(3), 1, 2), batch("b.1", range(3), 9, 10, epoch=2, run="t"), OTHER]
    result = account(twice, SENT, [fault])
    assert result.duplicates == 3
    assert result.passed is explains
    assert sum(result.explained.values()) == (3 if explains else 0)


def test_a_kill_during_an_outage_explains_batches_without_a_checkpoint() -> None:
    twice = [batch("a.1", range(3), 1, 2), batch("b.1", range(3), 50, 51, epoch=2, run="t"), OTHER]
    outage = Fault("lease table unreachable", None, 1.5, 40)
    assert account(twice, SENT, [outage, Fault("SIGKILL", "a", 30, 30)]).passed
    assert not account(twice, SENT, [outage]).passed


def test_target_must_contain_every_event_once() -> None:
    rows = [("0", 0, "10"), ("0", 1, "11"), ("0", 2, "12"), ("1", 0, "20")]
    assert account_target(rows, SENT).passed
    assert account_target(rows[1:], SENT).missing == [("0", 0)]
    assert account_target([*rows, rows[1]], SENT).duplicates == [("0", 1)]
    for wrong in (("0", 2, "13"), ("0", 3, "12"), ("2", 0, "10")):
        assert account_target([*rows, wrong], SENT).foreign == 1
        assert not account_target([*rows, wrong], SENT).passed
    assert account_target([*rows[:2], ("0", 2, "13"), rows[3]], SENT).missing == [("0", 2)]


def test_events_must_be_in_order_within_a_tenure() -> None:
    back = [batch("a.1", range(1, 3), 0, 1), batch("a.1", range(1), 2, 3), OTHER]
    assert len(account(back, SENT, []).disorder) == 1
    other_tenure = [batch("a.1", range(1, 3), 0, 1), batch("a.1", range(1), 2, 3, epoch=2), OTHER]
    assert not account(other_tenure, SENT, []).disorder


def test_idle_time_excludes_other_batches_of_the_new_owner() -> None:
    busy = [batch("b.1", range(1), 9.0, 11.0), batch("b.1", range(1), 11.5, 12.0)]
    assert idle_time(10.0, 12.5, busy) == pytest.approx(1.0)
    assert idle_time(10.0, 10.2, []) == pytest.approx(0.2)
