"""The settings of the jobs: what is wrong is refused in one line before anything starts."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.jobs import PREFIX, JobSettings, SettingError
from spark_ehbalance.jobs.batch_to_delta import Settings as BatchToDelta
from spark_ehbalance.jobs.batch_to_delta import parts
from spark_ehbalance.jobs.copy_hub import SINK_SECRET
from spark_ehbalance.jobs.copy_hub import Settings as CopyHub
from spark_ehbalance.jobs.parse_to_delta import Settings as ParseToDelta
from spark_ehbalance.jobs.program import overlap
from spark_ehbalance.jobs.settings import SECRET
from tests.jobs.test_stream_to_delta import KEY, STRING

BATCH = {"table": "/t", "from": "2026-01-31T12:00:00Z", "to": "2026-01-31T14:30:00Z"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, STRING)


def read(kind: type[JobSettings], given: dict[str, str], **more: str) -> Any:
    conf = {PREFIX + name: value for name, value in {**given, **more}.items() if value}
    return kind.read(conf, {name: os.environ[name] for name in (SECRET, SINK_SECRET) if name in os.environ})


def refusal(kind: type[JobSettings], given: dict[str, str], **more: str) -> str:
    with pytest.raises(SettingError) as refused:
        read(kind, given, **more)
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(PREFIX, "")


def test_a_range_is_kept_in_utc_and_its_parts_are_all_of_it() -> None:
    settings = read(BatchToDelta, BATCH, **{"from": "2026-01-31 12:00Z", "to": "2026-01-31T15:30+01:00"})
    assert settings.from_ == datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert settings.to == datetime(2026, 1, 31, 14, 30, tzinfo=timezone.utc)
    assert parts([], 10) == []
    assert parts([Range("0", 0, 5, 12), Range("3", 0, 0, 1)], 3) == [
        {"0": (5, 7), "3": (0, 0)},
        {"0": (7, 9), "3": (0, 0)},
        {"0": (9, 12), "3": (0, 1)},
    ]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"to": "2026-01-31T12:00:00Z"}, "from=2026-01-31T12:00:00Z is not before to=2026-01-31T12:00:00Z"),
        ({"from": "0001-01-01T00:00+14:00"}, "from='0001-01-01T00:00+14:00' is wrong: allowed is a time such as"),
        ({"from": "1769860800000"}, "from='1769860800000' is wrong: allowed is a time such as"),
        ({"from": "2026-01-31 12:00"}, "from='2026-01-31 12:00' is wrong: allowed is a time such as"),
        ({"to": "2026-02-01"}, "to='2026-02-01' is wrong: allowed is a time such as"),
        ({"to": ""}, "to is not set: a time such as"),
        ({"sourceName": KEY}, "sourceName: it holds what looks like a key"),
        ({"maxEventsPerCommit": "0"}, "maxEventsPerCommit='0' is wrong: allowed is a whole number from 1"),
        ({"source.startingPosition": "earliest"}, "source.*: option startingPosition cannot be set: from and to say"),
        ({"source.leaseTable": "/leases"}, "source.*: spark.read has no option leaseTable"),
    ],
)
def test_a_wrong_setting_of_batch_to_delta_is_named(given: dict[str, str], error: str) -> None:
    assert refusal(BatchToDelta, BATCH, **given).startswith(error)


PARSE = {"table": "/t", "rejected": "/r", "schema": "id STRING", "trigger": "1 s"}
PARSE |= {"checkpointLocation": "/c", "source.leaseTable": "/leases"}


def test_a_schema_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema"
    file.write_text("id STRING, key STRUCT<token: STRING>\n")
    assert read(ParseToDelta, PARSE, schema=f"file:{file}").schema == "id STRING, key STRUCT<token: STRING>"
    missing = refusal(ParseToDelta, PARSE, schema=f"file:{file}s")
    assert missing.endswith("allowed is a file that can be read where the driver runs (No such file or directory)")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"schema": ""}, "schema is not set: a schema in DDL, or file:PATH of one"),
        ({"rejected": ""}, "rejected is not set: a path or an address that Spark can write is needed"),
        ({"rejected": "/t/"}, "rejected=/t/ is table too, or one lies in the other: what is rejected needs a folder"),
        ({"schema": "file:/dev/zero"}, "schema='file:/dev/zero' is wrong: allowed is a regular file"),
        ({"source.onMalformed": "keep"}, "source.*: option onMalformed='keep' is wrong: allowed is fail or skip"),
    ],
)
def test_a_wrong_setting_of_parse_to_delta_is_named(given: dict[str, str], error: str) -> None:
    assert refusal(ParseToDelta, PARSE, **given).startswith(error)


COPY = {"checkpointLocation": "/c", "trigger": "1 s", "source.leaseTable": "/leases"}
OTHER = STRING.replace("EntityPath=hub", "EntityPath=copy")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"sink.eventHubName": "hub"}, "sink.*: eventHubName='hub' contradicts EntityPath='copy'"),
        ({"source.jsonProperties": "false"}, "source.*: option jsonProperties cannot be set: it is true, for types of"),
        ({"source.minPartitions": "9"}, "source.*: option minPartitions cannot be set: events of a key would be sent"),
        ({"source.onMalformed": "keep"}, "source.*: option onMalformed='keep' is wrong: allowed is fail or skip"),
        ({"unsendable": "/u", "sink.onUnsendable": "fail"}, "unsendable and sink.onUnsendable are both set"),
        ({"sink.onUnsendable": "keep"}, "sink.*: option onUnsendable='keep' is wrong: allowed is one of fail, skip"),
        ({"sink.leaseTable": "/l"}, "sink.*: there is no option 'leasetable' for df.write"),
        ({"sink.connectionString": KEY}, "'sink.connectionString' holds a secret, for all to see: write env:NAME"),
        ({"sink.connectionString": f"env:{SECRET}"}, "source.* and sink.* are the same hub, ns.servicebus"),
    ],
)
def test_a_wrong_setting_of_copy_hub_is_named(
    given: dict[str, str], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SINK_SECRET, OTHER)
    assert read(CopyHub, COPY | {"unsendable": "/u"}).sink["connectionString"] == f"env:{SINK_SECRET}"
    assert refusal(CopyHub, COPY, **given).startswith(error)


def test_a_sink_without_a_secret_is_named() -> None:
    assert refusal(CopyHub, COPY) == (
        f"neither of the environment variable {SINK_SECRET} and sink.fullyQualifiedNamespace set: set one of them"
    )


def test_a_mistyped_prefix_is_named() -> None:
    with pytest.raises(SettingError, match=r"there is no setting 'spark\.ehbalance\.jobs\.table': allowed are "):
        CopyHub.read({"spark.ehbalance.jobs.table": "/t"}, {})


@pytest.mark.parametrize(
    ("table", "rejected", "expected"),
    [
        ("/x/events", "file:/x/events/rejected", True),
        ("abfss://c@a.dfs.core.windows.net/x", "ABFSS://c@a.dfs.core.windows.net/x/", True),
        ("/x/events", "/x/events-rejected", False),
        ("default.events", "`events`", True),
        ("events", "events_rejected", False),
        ("events", "/x/events", False),
    ],
)
def test_two_spellings_of_one_table_overlap(table: str, rejected: str, expected: bool) -> None:
    assert overlap(table, rejected) is expected
    assert overlap(rejected, table) is expected
