"""The Scala connector's options: the same meaning here, or one line with what to write."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from spark_ehbalance.errors import OptionError
from spark_ehbalance.source.options import BATCH, STREAM, Options, batch_options, option_names, stream_options
from spark_ehbalance.source.scala_options import SCALA_OPTIONS
from spark_ehbalance.values.starting_positions import Edge

KEY = "ThisIsTheSecretKey0123456789="
STRING = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=reader;SharedAccessKey={KEY};EntityPath=Flights"
CONNECTED = {"eventhubs.connectionString": STRING}
#: What `EventHubsUtils.encrypt` makes of a connection string: blocks of AES in base64.
ENCRYPTED = "q1Yv4f3o2bT0l3c8m9sYbYk0Y3J5cHRlZC1jb25uZWN0aW9uLXN0cmluZw=="


def position(offset: str | None = None, number: int | None = -1, time: str | None = None, **more: object) -> str:
    """As the connector's documentation for PySpark writes one."""
    return json.dumps({"offset": offset, "seqNo": number, "enqueuedTime": time, "isInclusive": True, **more})


def by_partition(positions: dict[int, str], hub: str = "Flights") -> str:
    return json.dumps(
        {json.dumps({"ehName": hub, "partitionId": p}): json.loads(text) for p, text in positions.items()}
    )


def refusal(raw: dict[str, str]) -> str:
    with pytest.raises(OptionError) as raised:
        stream_options(raw)
    message = str(raised.value)
    assert "\n" not in message
    assert KEY not in message
    assert ENCRYPTED not in message
    assert "password" not in message
    return message


def test_the_configuration_of_a_job_is_understood() -> None:
    options = stream_options(
        {
            **CONNECTED,
            "eventhubs.consumerGroup": "alerts",
            "eventhubs.startingPosition": position("-1"),
            "maxEventsPerTrigger": "5000",
            "eventhubs.receiverTimeout": "PT3M20S",
            "eventhubs.prefetchCount": "500",
            "eventhubs.useExclusiveReceiver": "true",
            "eventhubs.dynamicPartitionDiscovery": "true",
            "eventhubs.slowPartitionAdjustment": "false",
            "eventhubs.useAadAuth": "false",
            "useSimulatedClient": "False",
        }
    )
    assert options.connection.hub == "Flights"
    assert options.consumer_group == "alerts"
    assert options.starting_position.of("3") is Edge.EARLIEST
    assert (options.max_events_per_trigger, options.receiver_timeout, options.prefetch) == (5000, 200.0, 500)
    assert options.owner_level == 0


@pytest.mark.parametrize("name", SCALA_OPTIONS)
def test_every_option_is_understood_or_refused_with_what_to_write(name: str) -> None:
    each = SCALA_OPTIONS[name]
    assert bool(each.ours) != bool(each.instead)
    if each.ours:
        assert each.ours in {*option_names(STREAM), *option_names(BATCH)}
    else:
        message = refusal({"connectionString": STRING, name: "x"})
        assert message == f"{name} is an option of the Scala connector: {each.instead}"
    if each.same:
        assert stream_options({"connectionString": STRING, name: each.same}) == stream_options(
            {"connectionString": STRING}
        )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (position("-1"), Edge.EARLIEST),
        (position("@latest"), Edge.LATEST),
        (position("@latest", isInclusive=False), Edge.LATEST),
        (position(number=100), 100),
        (position(number=100, isInclusive=False), 100),  # of which the connector takes no notice
        (position(number=0), 0),
        # Its receivers ask for events after the millisecond, ours for those at or after.
        (
            position(time="2026-01-31T12:00:00.250Z"),
            datetime(2026, 1, 31, 12, 0, 0, 251000, tzinfo=timezone.utc),
        ),
        (
            position(time="2026-01-31T12:00:00.250999Z"),
            datetime(2026, 1, 31, 12, 0, 0, 251000, tzinfo=timezone.utc),
        ),
        (position(time="2026-01-31T12:00:00Z"), datetime(2026, 1, 31, 12, 0, 0, 1000, tzinfo=timezone.utc)),
        ('{"offset": "-1"}', Edge.EARLIEST),
        ('{"seqNo": 7}', 7),
        (position("-1", None), Edge.EARLIEST),
    ],
)
def test_a_position_means_the_same(text: str, meant: object) -> None:
    assert stream_options(CONNECTED | {"eventhubs.startingPosition": text}).starting_position.of("0") == meant
    ending = batch_options(CONNECTED | {"eventhubs.endingPosition": text}).ending_position
    assert ending.of("0") == meant


def test_positions_by_partition() -> None:
    """Partitions without one have `startingPosition`, or begin at the end, as in the connector."""
    named = by_partition({0: position("@latest"), 2: position(number=100)})
    start = stream_options(CONNECTED | {"eventhubs.startingPositions": named}).starting_position
    assert [start.of(p) for p in "0123"] == [Edge.LATEST, Edge.LATEST, 100, Edge.LATEST]
    both = CONNECTED | {"eventhubs.startingPositions": named, "eventhubs.startingPosition": position("-1")}
    assert [stream_options(both).starting_position.of(p) for p in "0123"] == [
        Edge.LATEST,
        Edge.EARLIEST,
        100,
        Edge.EARLIEST,
    ]
    batch = batch_options(both | {"eventhubs.endingPositions": by_partition({1: position(number=9)})})
    assert [batch.ending_position.of(p) for p in "01"] == [Edge.LATEST, 9]


def test_what_export_checkpoints_writes_is_understood() -> None:
    """`ehbalance export-checkpoints --starting-positions` writes for the connector; both ways must agree."""
    text = by_partition({0: position(None, 113)})
    assert stream_options(CONNECTED | {"eventhubs.startingPositions": text}).starting_position.of("0") == 113


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({"eventhubs.startingPosition": "-1"}, "is wrong: allowed is {"),
        ({"eventhubs.startingPosition": "{"}, "is wrong: allowed is {"),
        ({"eventhubs.startingPosition": "[]"}, "is wrong: allowed is {"),
        ({"eventhubs.startingPosition": position()}, "allowed is exactly one of offset, seqNo and enqueuedTime"),
        ({"eventhubs.startingPosition": position("-1", 5)}, "allowed is exactly one of offset, seqNo and enqueuedTime"),
        (
            {"eventhubs.startingPosition": position("4711")},
            "has the offset '4711', which cannot be looked up: write the",
        ),
        ({"eventhubs.startingPosition": position(number=-5)}, "is wrong"),
        ({"eventhubs.startingPosition": '{"seqNo": true}'}, "is wrong"),
        ({"eventhubs.startingPosition": '{"seqNo": 1.5}'}, "is wrong"),
        ({"eventhubs.startingPosition": position(time="yesterday")}, "'yesterday' is wrong"),
        ({"eventhubs.startingPosition": position("-1", place="x")}, "is wrong"),
        ({"eventhubs.startingPositions": position("-1")}, "is wrong: allowed is JSON of a position for each partition"),
        ({"eventhubs.startingPositions": '{"0": {"seqNo": 1}}'}, "is wrong: allowed is JSON of a position for each"),
        (
            {"eventhubs.startingPositions": by_partition({0: position("-1")}, hub="flights")},
            "has a position of event hub 'flights', and this query reads 'Flights'",
        ),
        ({"eventhubs.receiverTimeout": "60 s"}, "is wrong: allowed is a duration in the form of java.time.Duration"),
        ({"eventhubs.receiverTimeout": "PT"}, "is wrong: allowed is a duration in the form of java.time.Duration"),
        ({"eventhubs.prefetchCount": "0"}, "option eventhubs.prefetchCount='0' is wrong"),
        (
            {"eventhubs.useExclusiveReceiver": "yes"},
            "eventhubs.useExclusiveReceiver='yes' is wrong: allowed is true or",
        ),
        ({"eventhubs.useExclusiveReceiver": "false", "leaseTable": "/tmp/t"}, "contradicts leaseTable"),
        ({"eventhubs.endingPosition": position("-1")}, "spark.readStream has no option eventhubs.endingPosition"),
        (
            {"eventhubs.consumerGrup": "x"},
            "has no option 'eventhubs.consumergrup' (did you mean eventhubs.consumerGroup?)",
        ),
        ({"eventhubs.consumerGroup": "a", "consumerGroup": "b"}, "and contradict each other: 'a' is consumerGroup='a'"),
        (
            {"eventhubs.startingPosition": position("-1"), "startingPosition": "latest"},
            "eventhubs.startingPosition and startingPosition are both set, and contradict each other",
        ),
        ({"eventhubs.startingPosition": position(time="9999-12-31T23:59:59.999Z")}, "is wrong: allowed is"),
        ({"eventhubs.startingPosition": "{" * 100_000}, "is wrong: allowed is"),
        ({"eventhubs.startingPosition": '{"a":' * 100_000}, "is wrong: allowed is"),
        ({"eventhubs.receiverTimeout": "P99999999999D"}, "is wrong: allowed is"),
        ({"eventhubs.receiverTimeout": "P99999D"}, "is wrong: allowed is"),
        ({"eventhubs.connectionString": STRING.replace("sb://", "sb://user:password@")}, "allowed is"),
        (
            {"eventhubs.connectionString": STRING.replace(";EntityPath=Flights", ""), "eventHubName": ""},
            "is wrong: allowed are",
        ),
        (
            {"connectionString": STRING.replace("Flights", "Ships")},
            "connectionString are both set, and contradict each",
        ),
    ],
)
def test_what_is_wrong_is_one_line(raw: dict[str, str], line: str) -> None:
    assert line in refusal(CONNECTED | raw)


def test_an_encrypted_connection_string_is_refused_and_not_repeated() -> None:
    message = refusal({"eventhubs.connectionString": ENCRYPTED})
    assert "eventhubs.connectionString is wrong: allowed is the connection string itself" in message
    assert "without EventHubsUtils.encrypt" in message


def test_both_may_be_given_if_they_are_the_same() -> None:
    raw = {"connectionString": STRING, "consumerGroup": "a", "eventhubs.consumerGroup": "a"} | CONNECTED
    assert stream_options(raw).consumer_group == "a"


def test_with_a_lease_table_readers_are_exclusive_without_an_owner_level() -> None:
    options: Options = stream_options(CONNECTED | {"eventhubs.useExclusiveReceiver": "true", "leaseTable": "/tmp/t"})
    assert options.owner_level is None


def test_a_batch_without_positions_reads_all() -> None:
    assert batch_options(CONNECTED).starting_position.of("0") is Edge.EARLIEST


def test_the_start_may_be_a_number() -> None:
    text = '{"offset": -1, "seqNo": -1, "enqueuedTime": null, "isInclusive": true}'
    assert stream_options({**CONNECTED, "eventhubs.startingPosition": text}).starting_position.others is Edge.EARLIEST
