"""All error conditions, with sentences and remedies. `scripts/write_tables.py` writes docs/errors.md from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """`error` is the class in `spark_ehbalance.errors`, `sentence` a format string for the error's parameters.

    `remedy` is Markdown for docs/errors.md; empty if the sentence states what is allowed.
    """

    error: str
    sentence: str
    remedy: str = ""


_CREATE_FROM_POSITIONS = (
    "[Create the table again](operations.md#create-a-table-from-positions) from the checkpoints of the group's queries."
)
_RETRIED = "Nothing of the batch was written. Spark runs it again when the query restarts."

CONDITIONS = {
    # --- options and arguments ------------------------------------------------------------------------------------
    "EHB_OPTION_REQUIRED": Condition("OptionError", "{option} is required: {reason}."),
    "EHB_OPTION_INVALID": Condition("OptionError", "{option}={value} is invalid. Allowed: {allowed}."),
    "EHB_OPTION_UNKNOWN": Condition(
        "OptionError",
        "{option} is not an option of {where}{hint}.",
        "[Options](options.md) and [Writing](writing.md) list all options; [Migration](migration.md) those of other "
        "sources.",
    ),
    "EHB_OPTION_NOT_APPLICABLE": Condition("OptionError", "{option} cannot be set here: {reason}."),
    "EHB_OPTIONS_CONFLICT": Condition("OptionError", "{options} cannot be combined: {reason}."),
    "EHB_CONNECTION_STRING_INVALID": Condition(
        "OptionError", "connectionString is invalid: {problem}. Allowed: {allowed}."
    ),
    "EHB_SECRET_EXPOSED": Condition(
        "OptionError",
        "{option} would expose a secret: {reason}. Allowed: {allowed}.",
        "Pass [a reference](security.md#secrets), and change the key if it was logged.",
    ),
    "EHB_SECRET_UNAVAILABLE": Condition("OptionError", "{option}={value} cannot be resolved: {reason}."),
    "EHB_CREDENTIAL_UNUSABLE": Condition(
        "OptionError",
        "{option}={value} cannot be used by Python {python} on {host}: {reason}.",
        "Install the callable's module for the driver and the executors, or pass it to both with `--py-files`: "
        "[Entra ID](security.md#entra-id).",
    ),
    "EHB_COLUMN_INVALID": Condition("OptionError", "Column {column}: {problem}. Allowed: {allowed}."),
    "EHB_PACKAGE_MISSING": Condition("OptionError", "{option} requires {package}: pip install '{install}'."),
    "EHB_FILE_INVALID": Condition("OptionError", "{file}: {problem}. Allowed: {allowed}."),
    "EHB_POSITION_INVALID": Condition(
        "OptionError", "The position of partition {partition} is invalid: {problem}. Allowed: {allowed}."
    ),
    "EHB_CHECKPOINT_UNUSABLE": Condition("OptionError", "{location} is unusable: {reason}."),
    "EHB_TWO_SOURCES": Condition(
        "OptionError",
        "The query has two sources with leaseTable={lease_table}, and each event would reach only one of them.",
        "For a join, leave `leaseTable` out and set a new `checkpointLocation`: both sources then read everything. For "
        "a union, use one `load()`.",
    ),
    # --- Spark and packages ---------------------------------------------------------------------------------------
    "EHB_SPARK_MISSING": Condition(
        "SparkMissingError",
        "pyspark is not installed: pip install 'spark-ehbalance[spark]', or 'spark-ehbalance[connect]' for a program "
        "whose Spark is a Spark Connect server.",
    ),
    "EHB_SPARK_UNSUPPORTED": Condition("SparkMissingError", "pyspark {version} is too old. Supported: {supported}."),
    "EHB_FORMAT_UNUSABLE": Condition(
        "EhBalanceError",
        "Spark cannot use the format ehbalance: {reason}. {python}.",
        "Install the package with its dependencies for [the Python that Spark starts](platforms.md#three-pythons), or "
        "pass it by `--archives`, `--py-files` (a wheel renamed to .zip) or, with Spark Connect, `spark.addArtifacts`.",
    ),
    "EHB_NOT_IMPORTABLE": Condition(
        "InstallationError",
        "The source ehbalance cannot start in {python}: {reason}.",
        "Install the package for [the Python that Spark starts](platforms.md#three-pythons).",
    ),
    "EHB_CLIENT_UNSUPPORTED": Condition(
        "ClientVersionError",
        "azure-eventhub {version} on {host} is not supported: {reason}. Tested: {tested}.",
        "Install [a tested version](platforms.md#versions) on the driver and on every executor.",
    ),
    "EHB_DELTA_UNSUPPORTED": Condition(
        "EhBalanceError",
        "No Delta Lake supports Spark {version} yet. Supported: {supported}.",
        "Use [a Spark version that has one](platforms.md#delta-lake).",
    ),
    # --- the event hub --------------------------------------------------------------------------------------------
    "EHB_HUB_UNREACHABLE": Condition(
        "HubUnavailableError",
        "{what}: {reason}.",
        "Check the host name, the firewall (port 5671, or 443 with `transportType=AmqpOverWebsocket`) and "
        "[the network options](security.md#networks). If the namespace is throttled, add throughput units.",
    ),
    "EHB_NETWORK_INVALID": Condition(
        "HubUnavailableError",
        "Cannot connect to {target}: {problem}.",
        "Correct the named option or the machine's settings: [Networks](security.md#networks). A retry is pointless.",
    ),
    "EHB_CREDENTIALS_REFUSED": Condition(
        "HubUnavailableError",
        "{hub} refused the credentials: {reason}. Check {check}.",
        "[Keys](security.md#secrets), [Entra ID](security.md#entra-id) and [roles](security.md#rights).",
    ),
    "EHB_TOKEN_UNAVAILABLE": Condition(
        "EhBalanceError",
        "No token could be fetched: {reason}.",
        "The credential failed: [Entra ID](security.md#entra-id).",
    ),
    "EHB_HUB_NOT_FOUND": Condition(
        "MissingError",
        "{what} {problem}.",
        "Correct `eventHubName`, `consumerGroup` or the namespace, or create or enable what is missing. If the hub was "
        "recreated with fewer partitions, set a new `checkpointLocation` and a new `leaseTable`.",
    ),
    "EHB_PARTITION_SILENT": Condition(
        "HubUnavailableError",
        "Partition {partition}: no event arrived for receiverTimeout={timeout:g} s: {reason}. The batch fails and can "
        "be run again.",
        "[A partition stalls](operations.md#a-partition-stalls). If it recurs, another reader has an owner level, or "
        "the network drops data. A compacted hub needs [`compacted`](operations.md#compacted-hubs); with it, a batch "
        "whose last events are gone ends once another event is sent to the partition.",
    ),
    "EHB_SEND_TIMEOUT": Condition(
        "HubUnavailableError",
        "{where} accepted no batch for sendTimeout={timeout:g} s: {reason}. If Spark retries the task, events that it "
        "already sent are duplicated.",
        "As [`EHB_HUB_UNREACHABLE`](#ehb_hub_unreachable).",
    ),
    "EHB_EVENTS_LOST": Condition(
        "DataLossError",
        "Partition {partition}: events from sequence number {position} on are gone: {reason}.",
        "The query was stopped for longer than the hub retains events, or is too slow. `failOnDataLoss=false` "
        "continues at the nearest event.",
    ),
    "EHB_EVENT_MALFORMED": Condition(
        "MalformedEventError",
        "Partition {partition}: {problem}.",
        "[`onMalformed`](options.md#events-that-cannot-be-read). If the event has no sequence number, skip it with "
        "[`ehbalance seek`](commands.md#operators-orders).",
    ),
    "EHB_ROW_UNSENDABLE": Condition(
        "UnsendableEventError",
        "{problem}. Neither this row nor its neighbours were sent.",
        "Correct the row, or set `onUnsendable=skip`: [rows that cannot be sent](writing.md#rows-that-cannot-be-sent).",
    ),
    "EHB_FOREIGN_READER": Condition(
        "ForeignReaderError",
        "Partition {partition}: a reader outside this group reads it with owner level {level}; this query has "
        "{own_level}.",
        "Stop that reader, give it another consumer group, or let it share the lease table.",
    ),
    # --- checkpoint, lease table and hub do not belong together ----------------------------------------------------
    "EHB_CHECKPOINT_STALE": Condition(
        "DataLossError",
        "The checkpoint ends with batch {batch}, and another process of this query began batch {begun} at {at} "
        "({owner} on {host}).",
        "The checkpoint was restored, or is a copy. If the query was still running elsewhere, start it again there. "
        "Otherwise set a new `checkpointLocation`: the query continues at the lease table's positions. If the sink "
        "was restored too, first [`ehbalance seek`](commands.md#operators-orders) to its end.",
    ),
    "EHB_HUB_RECREATED": Condition(
        "DataLossError",
        "The {part} contains positions of {known}, and this is {found}.",
        "Set a new `checkpointLocation` and a new `leaseTable`, or keep the table and run `ehbalance seek LEASE_TABLE "
        "--all --to earliest`.",
    ),
    "EHB_LEASE_TABLE_CHANGED": Condition(
        "DataLossError",
        "The checkpoint was written with {known}, and the query now has {found}.",
        "Set `leaseTable` back. If the table was moved on purpose, set a new `checkpointLocation`. If it was added, "
        "[create it from the checkpoint](operations.md#create-a-table-from-positions).",
    ),
    "EHB_LEASE_TABLE_LOST": Condition(
        "DataLossError",
        "The checkpoint was written with the lease table at {location} (id {id}), which is missing or empty.",
        "Put it back, or [create it from the checkpoints](operations.md#create-a-table-from-positions).",
    ),
    "EHB_LEASE_TABLE_REPLACED": Condition(
        "DataLossError", "The lease table has id {found}; the query used id {known}.", _CREATE_FROM_POSITIONS
    ),
    "EHB_LEASE_TABLE_STALE": Condition(
        "DataLossError",
        "The lease table was rolled back or edited: its {what} is {found}, and was {known}.",
        _CREATE_FROM_POSITIONS,
    ),
    "EHB_POSITION_UNKNOWN": Condition(
        "DataLossError",
        "The event hub no longer has the events at {events}, which were read.",
        "[A promotion to another region](operations.md#geo-replicated-hubs) lost them. Stop the queries, run "
        "`ehbalance seek LEASE_TABLE --all --to TIME` with a time shortly before the promotion, and start them again. "
        "Without a lease table set a new `checkpointLocation` and such a `startingPosition`.",
    ),
    "EHB_SINK_AHEAD": Condition(
        "DataLossError",
        "{sink} has batches up to number {in_sink}, but the query's checkpoint {checkpoint} {ends}. Batches up to "
        "number {in_sink} would be skipped silently. Nothing was read.",
        "The checkpoint is new, was set back, or belongs to another output. Restore the right one, or set a new "
        "`checkpointLocation` (for the file sink: a new folder): "
        "[batch numbers](sharing.md#sinks-that-know-batch-numbers).",
    ),
    "EHB_CHECKPOINT_FOREIGN": Condition(
        "EhBalanceError", "The query's checkpoint {problem}.", "Set a new `checkpointLocation`, or upgrade the package."
    ),
    # --- the lease table ------------------------------------------------------------------------------------------
    "EHB_LEASE_TABLE_UNAVAILABLE": Condition(
        "StoreUnavailableError",
        "{what} could not be {action}: {reason}.",
        "Check [the storage and its credentials](security.md#the-lease-tables-storage). A running query continues with "
        "its owned partitions. If the table cannot be opened although the storage works, its log is damaged: "
        + _CREATE_FROM_POSITIONS[0].lower()
        + _CREATE_FROM_POSITIONS[1:],
    ),
    "EHB_LEASE_TABLE_MISSING": Condition(
        "StoreUnavailableError",
        "There is no lease table at {location}.",
        "Put it back, or create one: `ehbalance init`.",
    ),
    "EHB_LEASE_TABLE_CONTENDED": Condition(
        "StoreUnavailableError",
        "The group could not be joined within {timeout:g} s: the lease table at {location} is slow or contended.",
        "The storage does not answer, or [too many members commit](sizing.md#lease-duration).",
    ),
    "EHB_LEASE_TABLE_DAMAGED": Condition(
        "StoreDamagedError",
        "The lease table at {location} is damaged: {problem}. Running queries continue reading their partitions.",
        _CREATE_FROM_POSITIONS,
    ),
    "EHB_LEASE_TABLE_SET_BACK": Condition(
        "StoreReplacedError",
        "The lease table at {location} was replaced, rolled back or edited by another program: {problem}.",
        _CREATE_FROM_POSITIONS,
    ),
    "EHB_LEASE_TABLE_FOREIGN": Condition(
        "StoreFormatError",
        "{location} cannot be used as a lease table: {problem}. Nothing was changed there.",
        "Choose another `leaseTable`: each namespace, hub and consumer group needs its own, in a folder without other "
        "files. A table of a later format needs a later version of this package. In a container with several groups, "
        "name one with `--group`. A checkpoint blob needs an offset and a sequence number: write both, or delete it.",
    ),
    "EHB_LEASE_TABLE_EXISTS": Condition(
        "EhBalanceError",
        "There is a lease table at {location}. Nothing was written.",
        "`ehbalance seek LEASE_TABLE --positions FILE` moves the positions of an existing one.",
    ),
    "EHB_COMMIT_CONFLICT": Condition(
        "ConflictError", "Another writer committed version {version} of {location}.", "Handled internally: report it."
    ),
    "EHB_FENCED": Condition(
        "FencedError",
        "A later process on {host} started as {owner}, so this process stops.",
        "Two processes use the same checkpoint, a copy of it, or the same `ownerId`; the later one continues. If Spark "
        "ended it too (`CONCURRENT_STREAM_LOG_UPDATE`), start it again. Give each query its own checkpoint and "
        "`ownerId`.",
    ),
    # --- exactly once ---------------------------------------------------------------------------------------------
    "EHB_TARGET_UNSUPPORTED": Condition(
        "TargetError",
        "Target {target} cannot be written exactly once: {reason}.",
        "[What a target needs](exactly-once.md). Nothing was written.",
    ),
    "EHB_TARGET_CALL_INVALID": Condition(
        "TargetError", "{function}: {problem}. Allowed: {allowed}.", "[Exactly once](exactly-once.md)."
    ),
    "EHB_TARGET_SCHEMA_MISMATCH": Condition(
        "TargetError",
        "Target {target}: column {column} {problem}.",
        "Drop the column, cast it in the frame if no value is lost, or add it with `write_once(mergeSchema=True)`.",
    ),
    "EHB_TARGET_ROWS_INVALID": Condition(
        "TargetError",
        "{problem}.",
        "Rows may be changed, dropped and multiplied, but each keeps `partition` and `sequenceNumber` of its event, in "
        "the batch that reads the event: no state (aggregation, stream-stream join) may return it in a later batch. "
        "Filter out events without a sequence number (`onMalformed=keep`). `merge` needs one row per event: "
        "`dropDuplicates(['partition', 'sequenceNumber'])`. If the table contains an event twice, delete all rows but "
        "one, or set `update=False`.",
    ),
    "EHB_TARGET_AHEAD": Condition(
        "TargetError",
        "Target {target}: partition {partition} has events up to {known} of {source}, which the hub does not have.",
        "The hub was recreated or promoted: use a new table, or another `source`.",
    ),
    "EHB_TARGET_HUB_RECREATED": Condition(
        "TargetError",
        "Target {target} was written from an earlier {source}.",
        "The hub was recreated: use a new table, or another `source`.",
    ),
    "EHB_TARGET_BATCH_EXISTS": Condition(
        "TargetError",
        "Target {target} already has batch {batch} of this query. Nothing was written.",
        "A second frame of the batch would be skipped: write the union of both, or give the second another `source`. "
        "If the query used Delta's own sink before, run it once more with that sink and end it with "
        "`spark_ehbalance.stop` before the change. If `foreachBatch` appends with the query's id as `txnAppId`, use "
        "another text there. If the checkpoint was set back, set a new `checkpointLocation`.",
    ),
    "EHB_TARGET_CONTENDED": Condition(
        "TargetError",
        "The target rejected {count} commits of the batch, the last one because {reason}.",
        "Other writers write or change the table constantly, or it cannot be written. " + _RETRIED,
    ),
    "EHB_TARGET_LOCKED": Condition(
        "TargetError",
        "{file} could not be locked: {reason}.",
        "Every writer of the table must be able to write this file and its folder. `fuser FILE` names the process that "
        "keeps the lock: resume or end it. " + _RETRIED,
    ),
    "EHB_TARGET_BATCH_UNKNOWN": Condition(
        "TargetError", "What the batch reads is unknown: {reason}.", "Restart the query. " + _RETRIED
    ),
    "EHB_TARGET_STATE_AHEAD": Condition(
        "TargetError",
        "Partitions {partitions} were lost during the batch, but the query's state contains their events.",
        "Restart the query: Spark runs the batch again from the state before it.",
    ),
    "EHB_SESSION_SKIPS_WRITES": Condition(
        "TargetError",
        "The session sets {setting}, so Delta would skip writes.",
        "`spark.conf.unset` it before the query starts, and set `txnAppId` and `txnVersion` as options of your own "
        "writes.",
    ),
    # --- commands and the planner ---------------------------------------------------------------------------------
    "EHB_ORDER_REJECTED": Condition("EhBalanceError", "The order was rejected: {reason}."),
    "EHB_PORT_UNAVAILABLE": Condition("EhBalanceError", "{address} cannot be used: {reason}."),
    "EHB_FILE_NOT_WRITTEN": Condition("EhBalanceError", "{file} could not be written: {reason}."),
    "EHB_PLANNER_FAILED": Condition(
        "EhBalanceError",
        "The query's planner failed: {reason}. Other queries take its partitions after the lease duration.",
        "A fault of this package: report it with the driver's log.",
    ),
    "EHB_DRIVER_LOST": Condition(
        "EhBalanceError",
        "Spark's JVM ended while its queries were running: {reason}.",
        "It was killed or crashed: see its log and the kernel's (out of memory). Start the program again.",
    ),
    "EHB_CONTROL_MESSAGE_INVALID": Condition("EhBalanceError", "Invalid control message: {problem}."),
    "EHB_CALL_INVALID": Condition("EhBalanceError", "{function}: {problem}."),
}
