"""A task against the emulator: the received events, their order, and a hub that rejects them."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub import EventData
from azure.eventhub._client_base import ConsumerProducerMixin

from spark_ehbalance.emulator import EventHub
from spark_ehbalance.emulator.amqp.frames import ACCEPTED, Disposition
from spark_ehbalance.emulator.endpoints import HubEndpoint
from spark_ehbalance.emulator.partition_keys import partition_for_key
from spark_ehbalance.errors import ClientVersionError, HubUnavailableError, MissingError, UnsendableEventError
from spark_ehbalance.eventhub import client_errors, metadata, sender, service_errors
from spark_ehbalance.eventhub.client_errors import CredentialsRefusedError, TransientError
from spark_ehbalance.eventhub.sending import writing
from spark_ehbalance.eventhub.sending.columns import SinkColumns
from spark_ehbalance.eventhub.sending.write_options import write_options
from spark_ehbalance.eventhub.sending.writing import LinkPool, SendResult, WriteTask
from spark_ehbalance.eventhub.wire.sending_link import Deadline, SendingLink
from tests.emulator.clients import producer
from tests.raising import raises
from tests.waiting import wait_until

KEYED = pa.schema([("body", pa.binary()), ("key", pa.string())])
PLAIN = pa.schema([("body", pa.binary())])


@pytest.fixture
def links() -> LinkPool:
    return LinkPool()


@pytest.fixture
def write(event_hub: EventHub, links: LinkPool) -> Callable[..., SendResult]:
    """Sends rows in a task, a few rows per batch."""

    def send(rows: list[dict[str, Any]], schema: pa.Schema = PLAIN, size: int = 100, **options: str) -> SendResult:
        given = {"connectionString": event_hub.connection_string, "sendTimeout": "30 s"} | options
        columns = SinkColumns(0, key=1 if "key" in schema.names else None)
        task = WriteTask(write_options(given), columns, links)
        return task.write(pa.Table.from_pylist(rows, schema).to_batches(size))

    return send


def test_events_of_a_key_arrive_in_order(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    rows = [{"body": b"%d" % number, "key": f"key {number % 50}"} for number in range(3000)]
    sent = write(rows, KEYED)
    assert (sent.events, sent.busy, sent.again) == (3000, 0, 0)
    by_key: dict[str | None, list[int]] = {}
    for event in event_hub.events():
        by_key.setdefault(event.partition_key, []).append(int(event.body))
    assert by_key == {f"key {k}": list(range(k, 3000, 50)) for k in range(50)}
    assert len({event.partition for event in event_hub.events()}) == 4, "keys are in all partitions"


def test_added_partition_is_sent_to(event_hub: EventHub, links: LinkPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool remembers the partition ids of earlier tasks."""
    monkeypatch.setattr(writing, "_MISSING_PARTITION_AGE", 0.0)
    schema = pa.schema([("body", pa.binary()), ("partition", pa.string())])

    def write(partition: str) -> SendResult:
        options = write_options({"connectionString": event_hub.connection_string, "onUnsendable": "skip"})
        rows = pa.Table.from_pylist([{"body": b"x", "partition": partition}], schema)
        return WriteTask(options, SinkColumns(0, partition=1), links).write(rows.to_batches())

    assert [write("3").events, write("4").skipped] == [1, 1]
    event_hub.emulator.add_partitions(event_hub.name, 1)
    assert write("4").events == 1
    assert [event.partition for event in event_hub.events()] == ["3", "4"]


def test_rejected_batches_keep_the_order_of_a_key(
    event_hub: EventHub, write: Callable[..., SendResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "busy_wait", lambda: 0.05)
    monkeypatch.setattr(writing, "_MAX_BATCH_BYTES", 400)  # so a key has several batches
    monkeypatch.setattr(writing, "_PART_BYTES", 100_000)  # and a task has several parts
    rows = [{"body": b"%d" % number, "key": f"key {number % 20}"} for number in range(400)]
    write(rows[:1], KEYED)
    for _ in range(3):
        event_hub.busy(10)
        sent = write(rows, KEYED)
        assert sent.busy >= 1
        assert sent.events == 400
    by_key: dict[str | None, list[int]] = {}
    for event in event_hub.events()[1:]:
        by_key.setdefault(event.partition_key, []).append(int(event.body))
    assert by_key == {f"key {k}": 3 * list(range(k, 400, 20)) for k in range(20)}, "and nothing is there twice"


def test_only_unacknowledged_batches_are_resent(
    event_hub: EventHub, write: Callable[..., SendResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among the batches in flight when the connection broke."""
    answered, answers = SendingLink._answered, list[int]()

    def counted(link: SendingLink, fields: list[Any]) -> None:
        answered(link, fields)
        answers.append(fields[1])

    monkeypatch.setattr(SendingLink, "_answered", counted)
    write([{"body": b"-1", "key": "k"}], KEYED)
    event_hub.emulator.delay(1000, partition=1)
    result: list[SendResult] = []
    rows = [{"body": b"%d" % number, "key": str(number)} for number in range(50)]
    thread = threading.Thread(target=lambda: result.append(write(rows, KEYED)))
    thread.start()
    arrived = event_hub.wait_for_events(51)[1:]
    late = [event.body for event in arrived if event.partition == "1"]
    wait_until(lambda: len(answers) == 51 - len(late), "the others are answered")
    event_hub.emulator.delay(0, partition=1)
    event_hub.emulator.drop_connections()
    thread.join(60)
    assert [(sent.events, sent.again) for sent in result] == [(50, len(late))]
    assert len(late) > 1
    assert sorted(event.body for event in event_hub.events()[51:]) == sorted(late)


def test_batch_sent_three_times_is_counted_once(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    write([{"body": b"first"}])
    event_hub.emulator.delay(1000)
    result: list[SendResult] = []
    thread = threading.Thread(target=lambda: result.append(write([{"body": b"x"}])))
    thread.start()
    for count in (2, 3):
        event_hub.wait_for_events(count)
        event_hub.emulator.drop_connections()
    event_hub.wait_for_events(4)
    event_hub.emulator.delay(0)
    event_hub.emulator.drop_connections()
    thread.join(60)
    assert [(sent.batches, sent.again) for sent in result] == [(1, 1)]


def test_slow_acknowledgements_postpone_the_timeout(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    """`sendTimeout` applies only to a hub that accepts nothing."""
    keys = [next(key for key in map(str, range(99)) if partition_for_key(key, 4) == index) for index in range(4)]
    write([{"body": b"first", "key": "k"}], KEYED)
    for index in range(4):
        event_hub.emulator.delay(0.7 * (index + 1), partition=index)
    sent = write([{"body": b"x", "key": key} for key in keys], KEYED, sendTimeout="2 s")
    assert (sent.events, sent.again, len(event_hub.events())) == (4, 0, 5)


def test_tiny_rows_do_not_make_parts_larger(
    event_hub: EventHub, links: LinkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even rows of type void, which have no bytes in Arrow but do as Python objects."""
    monkeypatch.setattr(writing, "_PART_BYTES", 100_000)
    task = WriteTask(write_options({"connectionString": event_hub.connection_string}), SinkColumns(0), links)
    batches = [pa.record_batch({"body": pa.nulls(50)})] * 10
    parts = [sum(keyed.end - keyed.first for keyed in part[None]) for part in task._encoded(batches, SendResult())]
    assert parts == [100] * 5


def test_largest_event_of_azures_client_is_sent(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    largest = b"x" * ((1 << 20) - 16)
    with producer(event_hub.connection_string) as client:
        client.send_batch([EventData(largest)])
    write([{"body": largest}])
    assert [event.body == largest for event in event_hub.events()] == [True, True]
    with raises(UnsendableEventError, "EHB_ROW_UNSENDABLE", problem=re.compile("the event has 1,048,577 bytes")):
        write([{"body": largest + b"x"}])


def test_hub_without_a_size_limit_is_supported(
    event_hub: EventHub, write: Callable[..., SendResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HubEndpoint, "max_message_size", (1 << 64) - 1)
    assert write([{"body": b"x"}]).events == len(event_hub.events()) == 1


def test_too_large_row_prevents_sending(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    with raises(UnsendableEventError, "EHB_ROW_UNSENDABLE", problem=re.compile("Row 301 of a task")):
        write([{"body": b"x"}] * 300 + [{"body": b"x" * (1 << 20)}])
    assert len(event_hub.events()) == 0


def test_on_unsendable_skip_counts_skipped_rows(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    rows = [{"body": b"a"}, {"body": b"x" * (1 << 20)}, {"body": b"b", "key": "k" * 129}, {"body": b"c", "key": "k"}]
    sent = write(rows, KEYED, size=3, onUnsendable="skip")
    assert (sent.events, sent.skipped) == (2, 2)
    assert sent.problem.startswith("Row 2 of a task cannot be sent: the event has 1,048,")
    assert sorted(event.body for event in event_hub.events()) == [b"a", b"c"]


def test_silent_hub_is_retried_and_fails_the_task(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    """The task fails long before the client's own timeout."""
    write([{"body": b"first"}])
    event_hub.emulator.delay(1000)
    with raises(HubUnavailableError, "EHB_SEND_TIMEOUT", timeout=2.0):
        write([{"body": b"x"}], sendTimeout="2 s")
    assert len(event_hub.events()) == 3


def test_throttled_batches_are_retried_and_counted(
    event_hub: EventHub, write: Callable[..., SendResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "busy_wait", lambda: 0.05)
    rows = [{"body": b"x", "key": str(number)} for number in range(10)]
    write(rows, KEYED)
    event_hub.busy(10)
    sent = write(rows, KEYED)
    assert (sent.busy, sent.again) == (10, 0)
    assert len(event_hub.events()) == 20, "a refusal is no doubt: nothing is there twice"
    assert service_errors.busy_wait() >= 4


MISSING = MissingError("EHB_HUB_NOT_FOUND", what="hub", problem="does not exist")
REFUSED = CredentialsRefusedError("EHB_CREDENTIALS_REFUSED", hub="hub", reason="expired", check="the key")


@pytest.mark.parametrize(
    ("faults", "takes_one", "raised"),
    [
        ([*(TransientError("broken"),) * 4, MISSING], False, None),
        ([MISSING, REFUSED, MISSING], False, None),
        ([MISSING, MISSING], True, None),
        ([MISSING, MISSING], False, MissingError),
        ([REFUSED, REFUSED], True, None),
        (
            [REFUSED, REFUSED],
            False,
            CredentialsRefusedError,
        ),
    ],
)
def test_missing_hub_or_rejected_token_is_final_if_it_happens_twice_in_a_row(
    event_hub: EventHub,
    write: Callable[..., SendResult],
    monkeypatch: pytest.MonkeyPatch,
    faults: list[Exception],
    takes_one: bool,
    raised: type[Exception] | None,
) -> None:
    """It is not final if the service answers differently or accepts a batch in between."""
    send, left = sender.Sender.send, [*faults]

    def faulty(opened: sender.Sender, window: list[Any], deadline: Deadline) -> None:
        if not left:
            return send(opened, window, deadline)
        if takes_one and len(left) == 1:
            send(opened, first := window[:1], deadline)
            assert not first
            del window[:1]
        opened.close()
        raise left.pop(0)

    monkeypatch.setattr(sender.Sender, "send", faulty)
    monkeypatch.setattr(writing, "_PAUSES", (0.2, 0.2))
    monkeypatch.setattr(client_errors, "_MISSING_FOR", 0.1)
    rows = [{"body": b"x", "key": f"{number}"} for number in range(3)]
    if raised is None:
        assert write(rows, KEYED).events == len(event_hub.events()) == 3
    else:
        with pytest.raises(raised):
            write(rows, KEYED)


def to_partition(connection: str, timeout: str) -> SendResult:
    """Sends a row that names its partition; the sender first requests the hub's partitions."""
    row = pa.RecordBatch.from_pylist([{"body": b"x", "partition": 1}])
    given = {"connectionString": connection, "sendTimeout": timeout}
    return WriteTask(write_options(given), SinkColumns(0, partition=1), LinkPool()).write([row])


def test_throttled_partition_list_is_retried(event_hub: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_errors, "_BUSY_WAIT", 0.2)
    monkeypatch.setattr(metadata, "_BUSY_PATIENCE", 0.5)
    event_hub.emulator.server_busy(seconds=4.0)
    assert to_partition(event_hub.connection_string, "3 s").events == 1


@pytest.mark.parametrize("event_hub_settings", [{"sas_keys": {"writer": "the right key"}}])
def test_missing_hub_or_invalid_key_fails_the_task_immediately(
    event_hub: EventHub, write: Callable[..., SendResult]
) -> None:
    with raises(MissingError, "EHB_HUB_NOT_FOUND", what=re.compile("Event hub 'none' at "), problem="does not exist"):
        write([{"body": b"x"}], connectionString=event_hub.emulator.connection_string("none"))
    wrong = event_hub.emulator.connection_string(event_hub.name, "writer", "another key")
    with raises(HubUnavailableError, "EHB_CREDENTIALS_REFUSED", check=re.compile("send right of the key")):
        write([{"body": b"x"}], connectionString=wrong, sendTimeout="5 s")
    with raises(HubUnavailableError, "EHB_CREDENTIALS_REFUSED"):
        to_partition(wrong, "5 s")


def test_acknowledgements_are_read_while_sending(
    event_hub: EventHub, write: Callable[..., SendResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches together take longer than sendTimeout, but the hub acknowledges them one by one."""
    written, waiting = SendingLink._write, list[int]()

    def slow(link: SendingLink, *given: Any) -> Any:
        waiting.append(link.unanswered)
        time.sleep(0.5)
        return written(link, *given)

    monkeypatch.setattr(SendingLink, "_write", slow)
    rows = [{"body": bytes(10_000), "key": str(number)} for number in range(90)]
    assert write(rows, KEYED, sendTimeout="4 s").again == 0
    assert len(waiting) > 8, "it takes longer than half of sendTimeout"
    assert len(event_hub.events()) == 90


def test_connections_are_opened_only_to_named_partitions(event_hub: EventHub, links: LinkPool) -> None:
    given = {"connectionString": event_hub.connection_string, "onUnsendable": "skip"}
    sent = WriteTask(write_options(given), SinkColumns(0, partition=1), links).write(
        [pa.RecordBatch.from_pylist([{"body": b"x", "partition": number} for number in (9, 3)])]
    )
    assert (sent.events, sent.skipped) == (1, 1)
    assert [partition for _, partition in links._idle] == ["3"]


def test_unavailable_hub_is_retried(
    event_hub: EventHub, write: Callable[..., SendResult], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_ehbalance")
    result: list[SendResult] = []
    thread = threading.Thread(target=lambda: result.append(write([{"body": b"x", "key": "k"}] * 10, KEYED)))
    with event_hub.unreachable():
        thread.start()
        wait_until(lambda: "retrying" in caplog.text, "it tries again")
    thread.join(60)
    assert result
    assert result[0].events == len(event_hub.events()) == 10


def test_settlement_of_the_hubs_own_deliveries_is_not_an_acknowledgement(
    event_hub: EventHub, write: Callable[..., SendResult]
) -> None:
    """Such as its answers to tokens, which the client does not settle; they do not have the numbers of batches."""
    emulator = event_hub.emulator

    def settle_its_own() -> None:
        for client in emulator._server.clients:
            for session in client.sessions():
                session.write(Disposition(False, 0, 100, True, ACCEPTED))
            client.flush()

    write([{"body": b"first"}])
    emulator.delay(1000)
    result: list[SendResult] = []
    thread = threading.Thread(target=lambda: result.append(write([{"body": b"x"}])), daemon=True)
    thread.start()
    wait_until(lambda: len(event_hub.events()) == 2, "the batch is in the hub")
    emulator._on_loop(settle_its_own)
    emulator.delay(0)
    emulator.drop_connections()
    thread.join(30)
    assert [sent.again for sent in result] == [1]


@pytest.mark.parametrize("event_hub_settings", [{"idle_timeout": 1.0}])
def test_idle_link_is_reopened(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    write([{"body": b"first"}])
    wait_until(lambda: event_hub.emulator.connections() == 0, "the hub has ended the connection")
    sent = write([{"body": b"second"}])
    assert (sent.events, sent.again) == (1, 0), "the hub's reason is read before a batch is sent"
    assert [event.body for event in event_hub.events()] == [b"first", b"second"]


def test_pausing_hub_receives_a_batch_once(event_hub: EventHub, write: Callable[..., SendResult]) -> None:
    """Even while the task waits in a write. The client would close a connection without an acknowledgement for a
    second."""
    write([{"body": b"first"}])
    reads_nothing = threading.Thread(target=event_hub.emulator._on_loop, args=(partial(time.sleep, 2.0),))
    reads_nothing.start()
    sent = write([{"body": b"x" * 1_000_000}] * 20)
    reads_nothing.join()
    assert (sent.events, sent.again) == (20, 0)
    assert len(event_hub.events()) == 21


def test_links_are_reused_and_dropped_when_idle(
    event_hub: EventHub, write: Callable[..., SendResult], links: LinkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> list[Any]:
        return [link for _, link in links._idle.values()]

    write([{"body": b"x"}])
    first, open_then = kept(), event_hub.emulator.connections()
    write([{"body": b"y"}])
    assert kept() == first
    monkeypatch.setattr(writing, "_MAX_LINK_IDLE", 0.0)
    write([{"body": b"z"}])
    assert kept() != first
    wait_until(lambda: event_hub.emulator.connections() <= open_then, "the old link is closed")
    assert len(event_hub.events()) == 3


def test_unsupported_client_is_rejected(write: Callable[..., SendResult], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ConsumerProducerMixin, "_open")
    with raises(ClientVersionError, "EHB_CLIENT_UNSUPPORTED"):
        write([{"body": b"x"}])


@pytest.fixture(autouse=True)
def _closed(links: LinkPool) -> Iterator[None]:
    yield
    for _, link in links._idle.values():
        link.close()


def test_error_while_encoding_is_raised_unchanged(
    event_hub: EventHub, links: LinkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise HubUnavailableError("EHB_HUB_UNREACHABLE", what="hub", reason="gone")

    monkeypatch.setattr(writing, "_PART_BYTES", 1)
    monkeypatch.setattr(sender.Sender, "send", gone)
    task = WriteTask(write_options({"connectionString": event_hub.connection_string}), SinkColumns(0, key=1), links)

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"body": b"a", "key": "k"}], KEYED)
        wait_until(task._stop.is_set, "the first part has failed")
        monkeypatch.setattr(writing, "_PART_BYTES", 1 << 20)
        yield pa.RecordBatch.from_pylist([{"body": b"b", "key": "k"}], KEYED)
        pytest.fail("rows of a second part were taken")

    with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", reason="gone"):
        task.write(batches())
