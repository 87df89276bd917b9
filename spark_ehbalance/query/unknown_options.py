"""Error messages for unknown options, with the option to use instead if it is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.sending.write_options import WRITE_OPTIONS
from spark_ehbalance.settings.secrets import may_be_secret, redacted
from spark_ehbalance.settings.suggestions import did_you_mean

#: Options that Spark adds, or that belong to a writer: key → option, and hint.
_SPARK_OPTIONS = {
    "path": ("path", ": eventHubName is the event hub, leaseTable the location of the lease table"),
    "checkpointlocation": ("checkpointLocation", ", but of df.writeStream"),
}

_SHARED = "leave it out: partitions are shared by load (see `strategy`)"
_START = "use `startingPosition`: `earliest`, `latest`, a sequence number or a time"
_END = "use `endingPosition`: `earliest`, `latest`, a sequence number or a time"
_BY_PARTITION = 'with a JSON object keyed by partition: {"0": 4711, "*": "latest"}'
_ENTRA = "use `fullyQualifiedNamespace`, `eventHubName` and `credential`"

#: The options of the Scala connector (2.3.22) → what to use instead.
SCALA_OPTIONS = {
    "eventhubs.connectionString": "use `connectionString`, not encrypted, preferably as `env:NAME`",
    "eventhubs.consumerGroup": "use `consumerGroup`",
    "eventhubs.startingPosition": _START,
    "eventhubs.startingPositions": f"use `startingPosition` {_BY_PARTITION}",
    "eventhubs.endingPosition": _END,
    "eventhubs.endingPositions": f"use `endingPosition` {_BY_PARTITION}",
    "eventhubs.maxEventsPerTrigger": "use `maxEventsPerTrigger`",
    "eventhubs.maxRatePerPartition": "use `maxEventsPerTrigger`, for all partitions together",
    "eventhubs.maxRatesPerPartition": "use `maxEventsPerTrigger`, for all partitions together",
    "eventhubs.receiverTimeout": "use `receiverTimeout`, for example `60 seconds`",
    "eventhubs.prefetchCount": "use `prefetch`",
    "eventhubs.useExclusiveReceiver": "use `ownerLevel=0` for true; with `leaseTable`, leave it out",
    "eventhubs.operationTimeout": "leave it out: a batch fails after `receiverTimeout`",
    "eventhubs.maxSilentTime": "leave it out: silent connections are renewed",
    "eventhubs.threadPoolSize": "leave it out; `minPartitions` sets the number of tasks",
    "eventhubs.dynamicPartitionDiscovery": "leave it out: partitions added to the hub are always found",
    "eventhubs.slowPartitionAdjustment": _SHARED,
    "eventhubs.maxAcceptableBatchReceiveTime": _SHARED,
    "eventhubs.throttlingStatusPlugin": _SHARED,
    "eventhubs.metricPlugin": "leave it out: the query's progress reports its lag, and `ehbalance status` the group's",
    "eventhubs.useAadAuth": _ENTRA,
    "eventhubs.aadAuthCallback": _ENTRA,
    "eventhubs.aadAuthCallbackParams": _ENTRA,
    "partitionPreferredLocationStrategy": "leave it out: Spark has no preferred locations for Python sources",
    "useSimulatedClient": "leave it out, and run `ehbalance emulator`",
}

_AT_ONCE = "leave it out: a batch starts as soon as an event arrives, or when the trigger fires"
_HUB = "use `eventHubName`: each source reads one event hub"

#: The options of Spark's Kafka source (4.1) → what to use instead.
KAFKA_OPTIONS = {
    "kafka.bootstrap.servers": "use `connectionString`, or `fullyQualifiedNamespace` and `credential`",
    "subscribe": _HUB,
    "subscribePattern": _HUB,
    "assign": _HUB,
    "kafka.group.id": "use `consumerGroup`",
    "groupIdPrefix": "use `consumerGroup`",
    "startingOffsets": _START,
    "startingTimestamp": _START,
    "startingOffsetsByTimestamp": _START,
    "endingOffsets": _END,
    "endingTimestamp": _END,
    "endingOffsetsByTimestamp": _END,
    "maxOffsetsPerTrigger": "use `maxEventsPerTrigger`",
    "minOffsetsPerTrigger": _AT_ONCE,
    "maxTriggerDelay": _AT_ONCE,
    "maxRecordsPerPartition": "use `minPartitions`, the number of tasks",
    "includeHeaders": "leave it out: the column `properties` contains the headers",
    "kafkaConsumer.pollTimeoutMs": "use `receiverTimeout`, for example `60 seconds`",
}

#: Names in lower case → the product that has the option, the option, and what to use instead.
_OTHERS = {
    name.lower(): (product, name, instead)
    for product, options in (("the Scala connector", SCALA_OPTIONS), ("Spark's Kafka source", KAFKA_OPTIONS))
    for name, instead in options.items()
}

#: Prefix that Spark adds to the options of a table in a catalog.
_TABLE_PREFIX = "option."


def unknown_option(key: str, where: str, here: Iterable[str], elsewhere: Mapping[str, str]) -> OptionError:
    """The error for the unknown option `key` of `where`, which has the options `here`; `elsewhere` maps the keys of the
    other kind of query to its options."""
    if key in _OTHERS:
        product, name, replacement = _OTHERS[key]
        return _error(name, "ehbalance", f", but of {product}: {replacement}")
    if key in _SPARK_OPTIONS:
        name, hint = _SPARK_OPTIONS[key]
        return _error(name, "ehbalance", hint)
    if key.startswith(_TABLE_PREFIX):
        hint = (
            ", which does not support tables in a catalog, because they would store and show the connection: use "
            "CREATE TEMPORARY VIEW NAME USING ehbalance OPTIONS (...), or spark.read"
        )
        return _error(redacted(key), "ehbalance", hint)
    if key in elsewhere:
        other = "spark.read" if where == "spark.readStream" else "spark.readStream"
        return _error(elsewhere[key], where, f", but of {other}")
    writing = {name.lower(): name for name in WRITE_OPTIONS}
    if key in writing:
        return _error(writing[key], where, ", but of df.write")
    if may_be_secret(key):
        return _error(redacted(key), "ehbalance")
    if hint := did_you_mean(key, sorted([*here, *writing.values()])):  # `where` is a guess: it may be a write
        return _error(redacted(key), "ehbalance", hint)
    return _error(redacted(key), where)


def _error(option: str, where: str, hint: str = "") -> OptionError:
    return OptionError("EHB_OPTION_UNKNOWN", option=option, where=where, hint=hint)
