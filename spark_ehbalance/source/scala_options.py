"""The options of the Scala connector (Azure/azure-event-hubs-spark): each is understood as our option with the same
meaning, or refused with what to write instead.

Names, values and meanings are those of its `EventHubsConf`, `EventPosition` and `EventHubsClient.translate` (2.3.22).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from spark_ehbalance.errors import OptionError
from spark_ehbalance.values.secrets import is_reference, shown
from spark_ehbalance.values.suggestions import did_you_mean

_PREFIX = "eventhubs."


@dataclass(frozen=True)
class ScalaOption:
    """One option of the connector.

    `ours` is our option with the same meaning, `text` makes its text from theirs, and raises ValueError with what is
    allowed; None means that this value asks for what is so in any case. An option without `ours` is refused with
    `instead`, but for the value `same` (in any case), which is passed over. `documented` is Markdown for what becomes
    of it.
    """

    ours: str = ""
    text: Callable[[str], str | None] = str
    instead: str = ""
    same: str = ""
    documented: str = ""


def _connection_string(text: str) -> str:
    if not is_reference(text) and "endpoint=" not in text.lower():
        raise ValueError(
            "the connection string itself, without EventHubsUtils.encrypt, best by reference: "
            "connectionString=env:NAME (this value is not shown)"
        )
    return text


_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


def _duration(text: str) -> str:
    """Our text for a `java.time.Duration`, such as `PT3M20S`."""
    match = _DURATION.fullmatch(text)
    parts = {name: float(value) for name, value in match.groupdict().items() if value} if match else {}
    if not parts:
        raise ValueError("a duration in the form of java.time.Duration, such as PT3M20S")
    try:
        return f"{timedelta(**parts).total_seconds():f} s"
    except OverflowError:
        raise ValueError("a duration of at most 366 days") from None


_FASTER = "no option is needed"
_ENTRA = (
    "write fullyQualifiedNamespace, eventHubName and credential, which is the name of a credential or the "
    "package.module:callable of your own"
)

#: Name → option.
SCALA_OPTIONS: dict[str, ScalaOption] = {
    "eventhubs.connectionString": ScalaOption(
        "connectionString", _connection_string, documented="as it is, not encrypted; best `env:NAME`"
    ),
    "eventhubs.consumerGroup": ScalaOption("consumerGroup"),
    "eventhubs.startingPosition": ScalaOption("startingPosition", documented="JSON of a position, see below"),
    "eventhubs.startingPositions": ScalaOption("startingPosition", documented="JSON by partition, see below"),
    "eventhubs.endingPosition": ScalaOption("endingPosition", documented="JSON of a position, see below"),
    "eventhubs.endingPositions": ScalaOption("endingPosition", documented="JSON by partition, see below"),
    "eventhubs.maxEventsPerTrigger": ScalaOption("maxEventsPerTrigger"),
    "eventhubs.receiverTimeout": ScalaOption("receiverTimeout", _duration, documented="such as `PT1M`"),
    "eventhubs.prefetchCount": ScalaOption("prefetch"),
    "eventhubs.useExclusiveReceiver": ScalaOption(
        "ownerLevel", documented="`true`: owner level 0, and nothing with `leaseTable`; `false`: none"
    ),
    "eventhubs.operationTimeout": ScalaOption(
        instead="leave it out: a hub that fails is asked again after growing pauses, and a batch fails after "
        "receiverTimeout"
    ),
    "eventhubs.maxSilentTime": ScalaOption(instead=f"leave it out: silent connections are renewed, {_FASTER}"),
    "eventhubs.threadPoolSize": ScalaOption(instead=f"leave it out: {_FASTER}; minPartitions sets the number of tasks"),
    "eventhubs.dynamicPartitionDiscovery": ScalaOption(
        same="true", instead="leave it out: partitions that are added to the hub are always found"
    ),
    "eventhubs.slowPartitionAdjustment": ScalaOption(
        same="false",
        instead="leave it out: events are shared by the partitions' backlogs, and partitions by load, see strategy",
    ),
    "eventhubs.maxAcceptableBatchReceiveTime": ScalaOption(
        instead="leave it out, as slowPartitionAdjustment: partitions are shared by load, see strategy"
    ),
    "eventhubs.throttlingStatusPlugin": ScalaOption(
        instead="leave it out, as slowPartitionAdjustment: partitions are shared by load, see strategy"
    ),
    "eventhubs.metricPlugin": ScalaOption(
        instead="leave it out: the query's progress has how far it is behind, and `ehbalance status` the group"
    ),
    "eventhubs.maxRatePerPartition": ScalaOption(instead="write maxEventsPerTrigger, for all partitions together"),
    "eventhubs.maxRatesPerPartition": ScalaOption(instead="write maxEventsPerTrigger, for all partitions together"),
    "eventhubs.useAadAuth": ScalaOption(same="false", instead=_ENTRA),
    "eventhubs.aadAuthCallback": ScalaOption(instead=_ENTRA),
    "eventhubs.aadAuthCallbackParams": ScalaOption(instead=_ENTRA),
    "partitionPreferredLocationStrategy": ScalaOption(
        instead="leave it out: Spark has no preferred locations for Python sources"
    ),
    "useSimulatedClient": ScalaOption(same="false", instead="leave it out, and run `ehbalance emulator`"),
}

_BY_KEY = {name.lower(): name for name in SCALA_OPTIONS}


def meant(key: str) -> str:
    """The key, in lower case, of our option if `key` is that of a position of the connector; else `key` itself."""
    return _POSITIONS[key][0].lower() if key in _POSITIONS else key


def as_written(option: str, text: str, raw: Mapping[str, str]) -> tuple[str, str]:
    """Name and text of the option of the connector in `raw` that our `option` comes from; else `option` and `text`
    themselves. Keys of `raw` are in lower case."""
    theirs = [name for name, each in SCALA_OPTIONS.items() if each.ours == option and name.lower() in raw]
    return (theirs[0], raw[theirs[0].lower()]) if theirs and option.lower() not in raw else (option, text)


def renamed(given: Mapping[str, str]) -> dict[str, str]:
    """`given` with the connector's options, but for positions, as ours. Keys are in lower case.

    Raises `OptionError` for one that has no equal, is wrong, or contradicts ours.
    """
    ours = {key: text for key, text in given.items() if not _is_scala(key) or key in _POSITIONS}
    for key, text in given.items():
        if key in ours:
            continue
        if key not in _BY_KEY:
            names = [name for name in SCALA_OPTIONS if name.startswith(_PREFIX)]
            raise OptionError(f"the Scala connector has no option {shown(key)}{did_you_mean(key, names)}")
        name = _BY_KEY[key]
        each = SCALA_OPTIONS[name]
        if each.ours:
            translated = _exclusive(text, given) if each.ours == "ownerLevel" else _text(name, each, text)
            if translated is not None:
                _put(ours, each.ours, translated, name, text)
        elif not each.same or text.lower() != each.same:
            raise OptionError(f"{name} is an option of the Scala connector: {each.instead}")
    return ours


def _is_scala(key: str) -> bool:
    return key.startswith(_PREFIX) or key in _BY_KEY


def _text(name: str, each: ScalaOption, text: str) -> str | None:
    try:
        return each.text(text)
    except ValueError as allowed:
        value = "" if each.ours == "connectionString" else f"={shown(text)}"
        raise OptionError(f"option {name}{value} is wrong: allowed is {allowed}") from None


def _exclusive(text: str, given: Mapping[str, str]) -> str | None:
    """The owner level: the connector's exclusive receivers have 0, and those of a lease table their lease's epoch."""
    if text.lower() not in ("true", "false"):
        raise OptionError(f"option eventhubs.useExclusiveReceiver={shown(text)} is wrong: allowed is true or false")
    exclusive, shared = text.lower() == "true", "leasetable" in given
    if shared and not exclusive:
        raise OptionError(
            "option eventhubs.useExclusiveReceiver=false contradicts leaseTable, with which one query reads a "
            "partition at a time: leave it out"
        )
    return "0" if exclusive and not shared else None


def _put(ours: dict[str, str], option: str, translated: str, name: str, text: str) -> None:
    if ours.setdefault(option.lower(), translated) != translated:
        values = "" if option == "connectionString" else f": {shown(text)} is {option}={shown(translated)}"
        raise OptionError(f"{name} and {option} are both set, and contradict each other{values}. Write {option} alone")


# --- positions -------------------------------------------------------------------------------------------------------

#: Key → our option, whether it is by partition.
_POSITIONS = {
    "eventhubs.startingposition": ("startingPosition", False),
    "eventhubs.startingpositions": ("startingPosition", True),
    "eventhubs.endingposition": ("endingPosition", False),
    "eventhubs.endingpositions": ("endingPosition", True),
}

_POSITION = (
    '{"offset": "-1", "seqNo": -1, "enqueuedTime": null, "isInclusive": true}, where offset is "-1" (start) or '
    '"@latest" (end), or seqNo a sequence number, or enqueuedTime a time such as "2026-01-31T12:00:00.000Z"'
)
_KEY = '{"ehName": HUB, "partitionId": NUMBER}'

#: The connector's default for partitions without a position, at both ends (`DefaultEventPosition`).
_DEFAULT = "latest"


def with_positions(given: Mapping[str, str], hub: str) -> dict[str, str]:
    """`given` with the connector's positions in the event hub `hub` as ours. Raises `OptionError`."""
    ours = {key: text for key, text in given.items() if key not in _POSITIONS}
    for option in ("startingPosition", "endingPosition"):
        names = [_BY_KEY[key] for key, (meant, _) in _POSITIONS.items() if meant == option and key in given]
        if names:
            texts = [given[name.lower()] for name in names]
            positions: dict[str, str | int] = {"*": _DEFAULT}
            for name, text in zip(names, texts, strict=True):
                positions |= dict(_named(name, text, hub))
            _put(ours, option, json.dumps(positions), " with ".join(names), " and ".join(texts))
    return ours


def _named(name: str, text: str, hub: str) -> Iterator[tuple[str, str | int]]:
    """Partition, or "*" for all others, and its position."""
    _, by_partition = _POSITIONS[name.lower()]
    if not by_partition:
        yield "*", _position(name, _object(name, text, _POSITION))
        return
    allowed = f"JSON of a position for each partition: a key is the text {_KEY}, a value {_POSITION}"
    for key, value in _object(name, text, allowed).items():
        partition = _object(name, key, allowed)
        if set(partition) != {"ehName", "partitionId"} or not _is_number(partition["partitionId"]):
            raise _wrong(name, key, allowed)
        if partition["ehName"] != hub:
            raise OptionError(
                f"option {name} has a position of event hub {shown(str(partition['ehName']))}, and this query reads "
                f"{shown(hub)}: leave out what is of other hubs, and write this one's name in the same way"
            )
        if not isinstance(value, dict):
            raise _wrong(name, key, allowed)
        yield str(partition["partitionId"]), _position(name, value)


def _position(name: str, position: Mapping[str, Any]) -> str | int:
    """Our position for one of the connector's.

    It takes no notice of `isInclusive`: a starting position is always included, an ending position never (its
    `EventPosition.fromSequenceNumber`, and `translate`, where a sequence number is taken as it is).
    """
    if set(position) - {"offset", "seqNo", "enqueuedTime", "isInclusive"}:
        raise _wrong(name, json.dumps(position), _POSITION)
    offset, number, moment = position.get("offset"), position.get("seqNo"), position.get("enqueuedTime")
    if [offset is None, number is None or number == -1, moment is None].count(False) != 1:
        raise _wrong(name, json.dumps(position), f"exactly one of offset, seqNo and enqueuedTime: {_POSITION}")
    if offset is not None:
        return _edge(name, offset)
    if moment is not None:
        return _after(name, moment)
    if not _is_number(number):
        raise _wrong(name, json.dumps(position), _POSITION)
    return int(number)  # type: ignore[arg-type]


def _edge(name: str, offset: object) -> str:
    edges = {"-1": "earliest", "@latest": "latest"}
    if str(offset) not in edges:  # the connector also takes -1 as a number
        raise OptionError(
            f"option {name} has the offset {shown(str(offset))}, which cannot be looked up: write the sequence number "
            "of the event instead, which the connector's column sequenceNumber has, or its time"
        )
    return edges[str(offset)]


def _after(name: str, moment: object) -> str:
    """The time from which on events were enqueued after `moment`.

    The connector's receivers ask for events later than a whole millisecond, and ours for those at or after it.
    """
    text = str(moment)
    try:
        time = datetime.strptime(text.upper(), "%Y-%m-%dT%H:%M:%S.%fZ" if "." in text else "%Y-%m-%dT%H:%M:%SZ")
        millisecond = time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=timezone.utc)
        whole = millisecond + timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise _wrong(name, text, _POSITION) from None
    return whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _object(name: str, text: str, allowed: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise _wrong(name, text, allowed)
    return parsed


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong(name: str, text: str, allowed: str) -> OptionError:
    return OptionError(f"option {name}={shown(text)} is wrong: allowed is {allowed}")
