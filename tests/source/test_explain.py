"""`ehbalance explain` of planners that run, with the emulator and a Delta table."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ehbalance.cli.common import hub_states
from spark_ehbalance.cli.explain import gathered
from spark_ehbalance.cli.reasons.answer import explain
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub.receiver import Receiver
from spark_ehbalance.source.options import Options
from spark_ehbalance.stores.delta import DeltaStore
from tests.cli.command import Command, kept
from tests.cli.conftest import ehbalance
from tests.source.queries import Group
from tests.source.support import HUB
from tests.waiting import wait_until

__all__ = ["ehbalance"]

pytestmark = pytest.mark.usefixtures("folder")


def after(group: Group, minutes: int, partition: str | None = None) -> str:
    """What is said so many minutes from now, if all goes on as it does: the members renew, and nothing else changes."""
    with DeltaStore(str(group.table)) as store:
        known = gathered(store, str(group.table), group.options())
    known = replace(known, now_ms=known.now_ms + 60_000 * minutes, alive=frozenset(known.snapshot.members))
    answer = explain(known, partition)
    told = [f"{each.text} {each.next} {each.do}" for each in answer.findings]
    return "\n".join([answer.state, *told, answer.closing])


def test_what_a_query_leaves_out_and_a_batch_that_hangs(group: Group) -> None:
    group.append(10)
    query = group.query("a")
    group.wait_owned(8)
    query.batch(1)
    wait_until(lambda: len(group.snapshot().members["a"].left_out) == 7, "the table has what is left out")
    said = after(group, 2)
    assert "a (on " in said
    assert "of its batches: the query's maxEventsPerTrigger is used up by other partitions" in said
    assert "70 events are unread" in said

    query.planner.ranges(query.logged)
    wait_until(lambda: group.snapshot().queries[query.logged.lineage].begun == 1, "the table knows of the batch")
    assert "Batch 1 of a (on " in (said := after(group, 4))
    assert "has been running for 4 min" in said
    query.run(query.logged)
    query.read(80)
    query.planner.finish(query.finished)
    assert query.plan() is None
    wait_until(lambda: set(group.checkpoints().values()) == {10}, "all is read")
    assert "Nothing is wrong." in after(group, 0)
    group.append(1)
    assert "Spark has not asked a (on " in after(group, 10)


def test_a_handover_and_a_reader_outside_the_group(
    group: Group, emulator: Emulator, ehbalance: Command, tmp_path: Path, rival: Callable[..., Receiver]
) -> None:
    group.raw |= {"leaseDuration": "10s", "handoverTimeout": "60s"}
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    a.planner.ranges(a.batch())
    wait_until(lambda: group.snapshot().queries[a.logged.lineage].begun == 1, "the table knows of the batch")
    group.query("b")

    def asked() -> list[str]:
        return [partition for partition, each in group.leases().items() if each.handover is not None]

    wait_until(lambda: len(asked()) == 4, "four are to be handed over")
    rival(50, asked()[0])
    connection = kept(emulator.connection_string(HUB), tmp_path)
    said = " ".join(ehbalance.succeeds("explain", group.table, asked()[0], *connection).out.split())
    assert "ago to hand partitions " in said
    assert "over to b (on " in said
    assert "when its batch ends, which has been running for" in said
    assert "with owner level 50" in said
    assert "ForeignReaderError" in said
    assert "): a took it, as nobody owned it." in said


def test_a_process_that_is_frozen_and_one_that_is_gone(group: Group, ehbalance: Command) -> None:
    group.raw["leaseDuration"] = "1.5s"
    group.append(10)
    process, _ = group.process("a")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: "None of the 1 members has written" in ehbalance("explain", group.table).out, "it is silent")
    process.kill()
    group.query("b")
    group.wait_owned(8)

    def moves() -> str:
        return " ".join(ehbalance("explain", group.table, "3").out.split())

    wait_until(lambda: "b took it from a: no sign of life for the lease duration" in moves(), "the history has it")


def test_a_hub_that_answers_late_makes_nobody_silent(
    group: Group, ehbalance: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.raw["leaseDuration"] = "1s"
    group.query("a")
    group.wait_owned(8)

    def late(options: Options) -> object:
        threading.Event().wait(2)
        return hub_states(options)

    monkeypatch.setattr("spark_ehbalance.cli.explain.hub_states", late)
    said = ehbalance.succeeds("explain", group.table, *kept(group.emulator.connection_string(HUB), tmp_path)).out
    assert "8 of 8 partitions have a live owner, 1 members live" in said


def test_a_partition_that_is_not_there_is_named(group: Group, ehbalance: Command) -> None:
    group.query("a")
    group.wait_owned(8)
    assert "partition '9' is unknown: there are 0, 1, 2" in ehbalance.fails(2, "explain", group.table, "9")
