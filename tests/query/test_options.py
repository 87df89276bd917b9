"""Options: an error is one line with the option, its value and the allowed values, and never contains a secret."""

from __future__ import annotations

import pickle
import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.group.starting_positions import EARLIEST, LATEST, PartitionEnd
from spark_ehbalance.group.strategies import PARAMETERS, STRATEGIES
from spark_ehbalance.group.strategies.race import RaceParameters
from spark_ehbalance.query.options import (
    OPTIONS,
    STRATEGY_OPTIONS,
    Options,
    batch_options,
    check_options,
    stream_options,
)
from spark_ehbalance.settings.option_specs import declarations, option_name
from tests.raising import raises

KEY = "ThisIsTheSecretKey0123456789="
STRING = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=reader;SharedAccessKey={KEY};EntityPath=hub"
NO_PATH = STRING.removesuffix(";EntityPath=hub")
KEYED = {"connectionString": STRING}
IDENTITY = {"fullyQualifiedNamespace": "ns.servicebus.windows.net", "eventHubName": "hub"}
SHARED = KEYED | {"leaseTable": "/tmp/leases"}


def refusal(raw: Mapping[str, str], *, batch: bool = False) -> str:
    """The error message for the options `raw`; checks that it is one line and does not contain the key."""
    with pytest.raises(OptionError) as caught:
        (batch_options if batch else stream_options)(raw)
    message = str(caught.value)
    assert "\n" not in message
    assert KEY not in message
    assert KEY not in repr(caught.value)
    assert isinstance(caught.value, EhBalanceError)
    assert isinstance(caught.value, ValueError)
    if batch == ("endingPosition" in raw):
        with pytest.raises(OptionError) as checked:
            check_options(raw)
        assert str(checked.value) == message
    return message


# --- the connection ----------------------------------------------------------------------------------------------


CONTAINER = {"leaseTable": "https://account.blob.core.windows.net/container", "storageSecrets.account_key": "a2V5"}
RACE = SHARED | {"strategy": "race"}

FORM = "Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;SharedAccessKey=KEY"

#: A misspelled option and the option that is meant.
ALIKE = {
    "conectionString": "connectionString",
    "lease_table": "leaseTable",
}

#: Names that are not options of a stream, and their error.
NO_OPTION = {
    "wherefrom": "[EHB_OPTION_UNKNOWN] 'wherefrom' is not an option of spark.readStream",
    "path": "[EHB_OPTION_UNKNOWN] path is not an option of ehbalance: eventHubName",
    "option.connectionstring": "[EHB_OPTION_UNKNOWN] 'option.connectionstring' is not an option of ehbalance",
    "endingPosition": "[EHB_OPTION_UNKNOWN] endingPosition is not an option of spark.readStream, but of spark.read.",
}

#: Minimal options of a query with a lease table.
NEED_A_TABLE = [name for name, spec in OPTIONS.items() if spec.only == OPTIONS["ownerId"].only and name != "strategy"]

#: Invalid options, and parts of their error message.
REFUSED: list[tuple[dict[str, str], list[str]]] = [
    # the connection
    ({}, ["connectionString", "fullyQualifiedNamespace", "EHB_OPTION_REQUIRED"]),
    (KEYED | IDENTITY, ["connectionString and fullyQualifiedNamespace", "EHB_OPTIONS_CONFLICT"]),
    ({"connectionString": NO_PATH}, ["eventHubName is required: connectionString has no EntityPath"]),
    (KEYED | {"eventHubName": "other"}, ["eventHubName='other'", "EntityPath='hub'"]),
    ({"fullyQualifiedNamespace": "ns.servicebus.windows.net"}, ["eventHubName is required"]),
    (IDENTITY | {"eventHubName": "a/b"}, ["eventHubName='a/b'", "letters, digits"]),
    (IDENTITY | {"eventHubName": ""}, ["eventHubName=''"]),
    *[({"connectionString": text, "eventHubName": "hub"}, ["connectionString", FORM]) for text in ("", KEY)],
    # names
    *[
        (KEYED | {name: "5"}, [f"[EHB_OPTION_UNKNOWN] '{name.lower()}' is", f"(did you mean {meant}?). Remedy:"])
        for name, meant in ALIKE.items()
    ],
    *[(KEYED | {name: "latest"}, [message]) for name, message in NO_OPTION.items()],
    # the lease table
    (KEYED | {"leaseTable": "  "}, ["leaseTable=''"]),
    (KEYED | {"leaseTable": "/dbfs/leases"}, ["[EHB_OPTION_INVALID] leaseTable='/dbfs/leases'"]),
    (KEYED | CONTAINER | {"storageOptions.conditional_put": "etag"}, ["conditional_put"]),
    (KEYED | CONTAINER | {"handoverTimeout": "40s"}, ["[EHB_OPTION_NOT_APPLICABLE] handoverTimeout", "handovers"]),
    (SHARED | {"blobNamespace": "localhost"}, ["[EHB_OPTION_NOT_APPLICABLE] blobNamespace", "container"]),
    (
        KEYED | CONTAINER | {"blobNamespace": "sb://localhost/"},
        ["[EHB_OPTION_INVALID]", "a host, or HOST:PORT"],
    ),
    *[
        (KEYED | {name: "1"}, ["[EHB_OPTION_NOT_APPLICABLE]", name, "needs leaseTable"])
        for name in [*NEED_A_TABLE, *STRATEGY_OPTIONS]
        if not name.startswith("storage")
    ],
    *[
        (KEYED | {name: "1"}, ["[EHB_OPTION_NOT_APPLICABLE]", name, "leaseTable is not set"])
        for name in NEED_A_TABLE
        if name.startswith("storage")
    ],
    (KEYED | {"strategy": "cooperative"}, ["[EHB_OPTION_NOT_APPLICABLE] strategy", "needs leaseTable"]),  # the default
    # strategies
    *[
        (KEYED | CONTAINER | {"strategy": name}, [f"[EHB_OPTION_INVALID] strategy={name!r}", "balanced, greedy"])
        for name in sorted(PARAMETERS.keys() - {"balanced", "greedy"})
    ],
    (SHARED | {"strategy": "magic"}, ["strategy='magic'", *STRATEGIES]),
    (
        SHARED | {"strategy": "cooperativ"},
        ["INVALID] strategy='cooperativ'", " (did you mean cooperative?)"],
    ),
    (RACE | {"race.speed": "1"}, ["[EHB_OPTION_UNKNOWN] 'race.speed'"]),
    (SHARED | {"race.weight": "load"}, ["[EHB_OPTION_NOT_APPLICABLE] race.weight", "cooperative"]),
    (RACE | {"transfer.target": "0.2"}, ["[EHB_OPTION_NOT_APPLICABLE] transfer.target", "race"]),
    # contradictions
    (SHARED | {"leaseDuration": "10"}, ["[EHB_OPTION_INVALID] leaseDuration=10 s", "balanceInterval=10 s"]),
    (SHARED | {"leaseDuration": "9999 ms"}, ["[EHB_OPTION_INVALID] leaseDuration=9.999 s", "balanceInterval=10 s"]),
    (SHARED | {"ownerLevel": "1"}, ["[EHB_OPTIONS_CONFLICT] leaseTable and ownerLevel"]),
    (KEYED | {"ownerLevel": "1", "minPartitions": "4"}, ["[EHB_OPTIONS_CONFLICT] minPartitions and ownerLevel"]),
]


#: The same for `spark.read`.
REFUSED_BATCHES: list[tuple[dict[str, str], list[str]]] = [
    *[
        (KEYED | {name: "1"}, [f"[EHB_OPTION_UNKNOWN] {name} is not an option of spark.read, but of spark.readStream"])
        for name in ("leaseTable", "strategy", "ownerId", "maxEventsPerTrigger", "balanceInterval")
    ],
    (KEYED | {"storageOptions.region": "west"}, ["storageOptions.*"]),
    (KEYED | {"ownerLevel": "1", "minPartitions": "4"}, ["minPartitions"]),
]


@pytest.mark.parametrize(
    ("raw", "expected", "batch"), [(*case, False) for case in REFUSED] + [(*case, True) for case in REFUSED_BATCHES]
)
def test_invalid_options_are_rejected(raw: dict[str, str], expected: list[str], batch: bool) -> None:
    message = refusal(raw, batch=batch)
    assert [text for text in expected if text not in message] == []


def test_connections_by_key_and_by_identity() -> None:
    by_key = stream_options({"connectionString": NO_PATH, "eventHubName": "hub"}).connection
    by_path = stream_options({"connectionString": STRING, "eventHubName": "HUB"}).connection
    by_identity = stream_options(IDENTITY).connection
    for connection in (by_key, by_path, by_identity):
        assert (connection.namespace, connection.hub.lower()) == ("ns.servicebus.windows.net", "hub")
        assert connection.group("$default") == by_key.group("$Default")
    assert by_identity.identity == Identity("default")
    managed = stream_options(IDENTITY | {"credential": "MANAGEDidentity"}).connection
    assert managed.identity == Identity("managedIdentity")


def test_repr_contains_no_secret() -> None:
    options = stream_options(SHARED | {"storageSecrets.AZURE_STORAGE_KEY": KEY + "storage"})
    for text in (repr(options), str(options), repr(options.connection), str(options.connection)):
        assert KEY not in text
        assert "SharedAccessKey=" not in text
    assert options.storage_options == {"azure_storage_key": KEY + "storage"}
    assert options.connection.connection_string == STRING


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in (OPTIONS | STRATEGY_OPTIONS) if "*" not in name])
@pytest.mark.parametrize("value", [f"SharedAccessKey={KEY}", "\\x00"])
def test_messages_spell_options_as_declared(name: str, value: str) -> None:
    """Spark passes option names in lower case."""
    with pytest.raises(OptionError) as refused:
        check_options(IDENTITY | {"leaseTable": "/leases", name.lower(): value})
    assert name.lower() not in str(refused.value).replace(name, "")


def test_stream_and_batch_only_options() -> None:
    check_options(KEYED | {"endingPosition": "latest", "startingPosition": "earliest"})
    check_options(KEYED | {"leaseTable": "/tmp/t", "maxEventsPerTrigger": "5"})
    check_options(KEYED | {"checkpointLocation": "/c"})  # the target of a stream is known only later
    with raises(OptionError, "EHB_OPTION_UNKNOWN", option="leaseTable", where="spark.read"):
        check_options(KEYED | {"endingPosition": "latest", "leaseTable": "/tmp/t"})
    with raises(OptionError, "EHB_OPTION_UNKNOWN", option="checkpointLocation", hint=", but of df.writeStream"):
        stream_options(KEYED | {"checkpointLocation": "/c"})


def test_write_options_are_known() -> None:
    with raises(OptionError, "EHB_OPTION_UNKNOWN", option="'sendtimout'", hint=re.compile("sendTimeout")):
        check_options(KEYED | {"sendTimout": "5 s"})
    with raises(OptionError, "EHB_OPTION_UNKNOWN", option="kafkaColumns", where="spark.read", hint=", but of df.write"):
        batch_options(KEYED | {"kafkaColumns": "true"})


@pytest.mark.parametrize("case", [str.lower, str.upper, str.swapcase])
def test_option_names_are_case_insensitive(case: Callable[[str], str]) -> None:
    raw = SHARED | {"ownerId": "me", "strategy": "balanced", "failOnDataLoss": "FALSE", "storageOptions.Region": "x"}
    assert stream_options({case(name): value for name, value in raw.items()}) == stream_options(raw)


# --- values ------------------------------------------------------------------------------------------------------

#: (options, values that are wrong for all of them, allowed values); `tests/settings/test_parsing.py` tests the formats.
WRONG = [
    ("maxEventsPerTrigger minPartitions maxPartitionsOwned", ["0"], "a whole number of 1 or more"),
    ("prefetch", ["0"], "a whole number from 1 to 10000"),
    ("ownerLevel", ["-1"], "a whole number of 0 or more"),
    ("prefetch", ["10001"], "1 to 10000"),
    ("failOnDataLoss jsonProperties", ["yes"], "true or false"),
    ("balanceInterval leaseDuration handoverTimeout receiverTimeout", ["0 s"], "10 seconds, 500 ms, 2 minutes"),
    ("ownerId", ["", "a b", "a/b", "x" * 201, "ä", "a\nb"], ""),
    ("consumerGroup", ["", "a/b", "x" * 257, "a b"], ""),
    ("startingPosition", ["2026-13-01", '{"0": 3'], ""),
    (
        "leaseTable",
        [f"/tmp/a{character}b" for character in [*"\"'[]{}<>|*?`", "\n", "\x00", "\x1f"]],
        "without quotes, brackets",
    ),
    ("onMalformed", ["ignore"], "one of fail, keep, skip"),
    ("race.weight", ["size"], "one of count, load"),
    ("race.delayPerLease", ["0 s"], "a duration above 0"),
    ("transfer.target", ["-1"], "a number from 0 to 10"),
    ("transfer.hitCount", ["1.5"], "a whole number of 0 or more"),
]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [(name, value, allowed) for names, values, allowed in WRONG for name in names.split() for value in values],
)
def test_error_contains_the_wrong_value_and_the_allowed_ones(name: str, value: str, allowed: str) -> None:
    strategy, dot, _ = name.partition(".")
    message = refusal(SHARED | {name: value} | ({"strategy": strategy} if dot else {}))
    assert message.startswith(f"[EHB_OPTION_INVALID] {name}={value!r}")
    assert allowed in message


def test_python_values_are_accepted_and_survive_pickling() -> None:
    raw: dict[str, object] = {"failOnDataLoss": False, "prefetch": 7, "minPartitions": None, "RACE.WEIGHT": "load"}
    options = stream_options(RACE | {"startingPosition": '{"0": 5, "*": "2026-01-31T12:00:00Z"}'} | raw)  # type: ignore[arg-type]
    assert (options.fail_on_data_loss, options.prefetch, options.min_partitions) == (False, 7, None)
    assert options.strategy_parameters == RaceParameters(weight="load")
    assert pickle.loads(pickle.dumps(options)) == options


def test_namespace_includes_the_port_in_delta_but_not_in_a_container() -> None:
    """In Delta, two emulators on one machine are two groups; most of Azure's processors omit the port."""
    at_a_port = {"connectionString": STRING.replace("ns.servicebus.windows.net", "localhost:5673")}
    container = at_a_port | {"leaseTable": "https://account.blob.core.windows.net/leases"}
    assert stream_options(at_a_port | {"leaseTable": "/tmp/leases"}).group.namespace == "localhost:5673"
    assert stream_options(container).group.namespace == "localhost"
    assert stream_options(container | {"blobNamespace": "Localhost:5673"}).group.namespace == "localhost:5673"


# --- defaults ----------------------------------------------------------------------------------------------------


def test_batch_defaults() -> None:
    options = batch_options(KEYED)
    assert (options.starting_position, options.ending_position) == (EARLIEST, LATEST)
    assert batch_options(KEYED | {"StartingPosition": "latest"}).starting_position.others is PartitionEnd.LATEST


def test_processor_groups_have_their_own_defaults() -> None:
    options = stream_options(KEYED | CONTAINER)
    assert (options.strategy, options.balance_interval, options.lease_duration) == ("balanced", 10.0, 60.0)
    given = stream_options(KEYED | CONTAINER | {"strategy": "greedy", "leaseDuration": "180s"})
    assert (given.strategy, given.lease_duration) == ("greedy", 180.0)
    by_identity = IDENTITY | {"credential": "azureCli", "leaseTable": CONTAINER["leaseTable"]}
    assert stream_options(by_identity).storage_options == {"credential": "azureCli"}, "as the hub is"


# --- the declarations -------------------------------------------------------------------------------------------

KINDS = {"": Options} | {f"{name}.": kind for name, kind in PARAMETERS.items()}
DECLARED = {
    prefix + option_name(field): (kind, field, spec)
    for prefix, kind in KINDS.items()
    for field, spec in declarations(kind).items()
}
TABLES = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "write_tables.py"))


@pytest.mark.parametrize("name", DECLARED)
def test_option_has_a_meaning_and_its_documented_default(name: str) -> None:
    kind, field, spec = DECLARED[name]
    assert spec.meaning
    documented = re.fullmatch(r"`([^`]+)`", spec.default.removeprefix("stream ").partition(",")[0])
    if documented and documented[1] not in OPTIONS:  # a default can be another option's value
        assert spec.parse(documented[1]) == getattr(kind, field)
    else:
        assert getattr(kind, field) is None


@pytest.mark.parametrize("path", TABLES["PAGES"], ids=lambda path: path.name)
def test_documentation_contains_the_declared_options(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert TABLES["with_tables"](page, TABLES["declared_tables"]()) == page, "run scripts/write_tables.py"


@pytest.mark.parametrize(
    ("name", "product", "section"),
    [
        ("eventhubs.consumerGroup", "the Scala connector", "From the Scala connector"),
        ("startingOffsets", "Spark's Kafka source", "From Spark's Kafka source"),
        ("kafka.bootstrap.servers", "Spark's Kafka source", "From Spark's Kafka source"),
    ],
)
def test_error_for_another_sources_option_links_to_its_replacement(name: str, product: str, section: str) -> None:
    page = Path("docs/migration.md").read_text(encoding="utf-8")
    assert f"\n## {section}\n" in page
    assert f"`{name}`" in page
    anchor = section.lower().replace(" ", "-").replace("'", "")
    hint = f", but of {product}: see docs/migration.md#{anchor}"
    with raises(OptionError, "EHB_OPTION_UNKNOWN", option=repr(name.lower()), hint=hint):
        stream_options(KEYED | {name: "any"})


def test_documented_replacements_are_options() -> None:
    page = Path("docs/migration.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `.*\| use `(\w+)", page, re.MULTILINE)
    assert len(names) > 10
    assert {*names} <= OPTIONS.keys()
