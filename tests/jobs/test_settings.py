"""Settings of the jobs: errors are one line and occur before anything starts."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.jobs import PREFIX, JobSettings, SettingError
from spark_ehbalance.jobs.batch_to_delta import Settings as BatchToDelta
from spark_ehbalance.jobs.batch_to_delta import split
from spark_ehbalance.jobs.copy_hub import SINK_SECRET
from spark_ehbalance.jobs.copy_hub import Settings as CopyHub
from spark_ehbalance.jobs.parse_to_delta import Settings as ParseToDelta
from spark_ehbalance.jobs.settings import SECRET
from tests.jobs.test_stream_to_delta import KEY, STRING
from tests.raising import raises

BATCH = {"table": "/t", "from": "2026-01-31T12:00:00Z", "to": "2026-01-31T14:30:00Z"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, STRING)


def read(kind: type[JobSettings], texts: dict[str, str], **more: str) -> Any:
    conf = {PREFIX + name: value for name, value in {**texts, **more}.items() if value}
    return kind.read(conf, {name: os.environ[name] for name in (SECRET, SINK_SECRET) if name in os.environ})


def assert_rejected(
    kind: type[JobSettings], texts: dict[str, str], condition: str, parameters: dict[str, str], **more: str
) -> None:
    patterns = {name: re.compile(re.escape(text).replace(r"\*", ".*")) for name, text in parameters.items()}
    with raises(SettingError, condition, **patterns) as caught:
        read(kind, texts, **more)
    assert "\n" not in str(caught.value)


def test_range_is_in_utc_and_split_completely() -> None:
    settings = read(BatchToDelta, BATCH, **{"from": "2026-01-31 12:00Z", "to": "2026-01-31T15:30+01:00"})
    assert settings.from_ == datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert settings.to == datetime(2026, 1, 31, 14, 30, tzinfo=timezone.utc)
    assert split([], 10) == []
    assert split([OffsetRange("0", 0, 5, 12), OffsetRange("3", 0, 0, 1)], 3) == [
        {"0": (5, 7), "3": (0, 0)},
        {"0": (7, 9), "3": (0, 0)},
        {"0": (9, 12), "3": (0, 1)},
    ]


INVALID, CONFLICT, FORBIDDEN = "EHB_OPTION_INVALID", "EHB_OPTIONS_CONFLICT", "EHB_OPTION_NOT_APPLICABLE"
REQUIRED, UNKNOWN, EXPOSED = "EHB_OPTION_REQUIRED", "EHB_OPTION_UNKNOWN", "EHB_SECRET_EXPOSED"


@pytest.mark.parametrize(
    ("texts", "condition", "parameters"),
    [
        (
            {"to": "2026-01-31T12:00:00Z"},
            CONFLICT,
            {"options": f"{PREFIX}from=2026-01-31T12:00:00Z and {PREFIX}to=2026-01-31T12:00:00Z"},
        ),
        *(
            ({name: text}, INVALID, {"option": PREFIX + name, "value": repr(text), "allowed": "a time such as"})
            for name, text in (
                ("from", "0001-01-01T00:00+14:00"),
                ("from", "1769860800000"),
                ("from", "2026-01-31 12:00"),
                ("to", "2026-02-01"),
            )
        ),
        ({"to": ""}, REQUIRED, {"option": PREFIX + "to", "reason": "a time such as"}),
        ({"sourceName": KEY}, INVALID, {"option": PREFIX + "sourceName", "value": "(not shown"}),
        (
            {"maxEventsPerCommit": "0"},
            INVALID,
            {"option": PREFIX + "maxEventsPerCommit", "value": "'0'", "allowed": "a whole number of 1 or more"},
        ),
        (
            {"source.startingPosition": "earliest"},
            FORBIDDEN,
            {"option": PREFIX + "source.startingPosition", "reason": f"{PREFIX}from and {PREFIX}to"},
        ),
        ({"source.leaseTable": "/leases"}, UNKNOWN, {"option": PREFIX + "source.leaseTable", "where": "spark.read"}),
    ],
)
def test_batch_to_delta_rejects_invalid_settings(
    texts: dict[str, str], condition: str, parameters: dict[str, str]
) -> None:
    assert_rejected(BatchToDelta, BATCH, condition, parameters, **texts)


PARSE = {"table": "/t", "rejected": "/r", "schema": "id STRING", "trigger": "1 s"}
PARSE |= {"checkpointLocation": "/c", "source.leaseTable": "/leases"}


def test_schema_can_be_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema"
    file.write_text("id STRING, key STRUCT<token: STRING>\n")
    assert read(ParseToDelta, PARSE, schema=f"file:{file}").schema == "id STRING, key STRUCT<token: STRING>"
    missing = {"option": PREFIX + "schema", "allowed": "(No such file or directory)"}
    assert_rejected(ParseToDelta, PARSE, INVALID, missing, schema=f"file:{file}s")


@pytest.mark.parametrize(
    ("texts", "condition", "parameters"),
    [
        (
            {"schema": ""},
            REQUIRED,
            {"option": PREFIX + "schema", "reason": "a schema in DDL, or file:PATH if"},
        ),
        ({"rejected": ""}, REQUIRED, {"option": PREFIX + "rejected", "reason": "a path or an address"}),
        ({"rejected": "/t/"}, CONFLICT, {"options": f"{PREFIX}table=/t and {PREFIX}rejected=/t/"}),
        ({"rejected": "/t/r"}, CONFLICT, {"options": f"{PREFIX}table=/t and {PREFIX}rejected=/t/r"}),
        (
            {"schema": "file:/dev/zero"},
            INVALID,
            {"option": PREFIX + "schema", "value": "'file:/dev/zero'", "allowed": "a regular file"},
        ),
        (
            {"source.onMalformed": "keep"},
            INVALID,
            {"option": PREFIX + "source.onMalformed", "value": "'keep'", "allowed": "fail or skip"},
        ),
    ],
)
def test_parse_to_delta_rejects_invalid_settings(
    texts: dict[str, str], condition: str, parameters: dict[str, str]
) -> None:
    assert_rejected(ParseToDelta, PARSE, condition, parameters, **texts)


COPY = {"checkpointLocation": "/c", "trigger": "1 s", "source.leaseTable": "/leases"}
OTHER = STRING.replace("EntityPath=hub", "EntityPath=copy")


@pytest.mark.parametrize(
    ("texts", "condition", "parameters"),
    [
        (
            {"sink.eventHubName": "hub"},
            "EHB_OPTIONS_CONFLICT",
            {"options": "sink.eventHubName='hub' and EntityPath='copy'"},
        ),
        (
            {"source.jsonProperties": "false"},
            FORBIDDEN,
            {"option": PREFIX + "source.jsonProperties", "reason": "types of properties"},
        ),
        (
            {"source.minPartitions": "9"},
            FORBIDDEN,
            {"option": PREFIX + "source.minPartitions", "reason": "events with the same key"},
        ),
        (
            {"source.onMalformed": "keep"},
            INVALID,
            {"option": PREFIX + "source.onMalformed", "value": "'keep'", "allowed": "fail or skip"},
        ),
        (
            {"unsendable": "/u", "sink.onUnsendable": "fail"},
            CONFLICT,
            {"options": f"{PREFIX}unsendable and {PREFIX}sink.onUnsendable"},
        ),
        (
            {"sink.onUnsendable": "keep"},
            INVALID,
            {"option": PREFIX + "sink.onUnsendable", "value": "'keep'", "allowed": "one of fail, skip"},
        ),
        ({"sink.leaseTable": "/l"}, "EHB_OPTION_UNKNOWN", {"option": PREFIX + "sink.leasetable", "where": "df.write"}),
        (
            {"sink.connectionString": KEY},
            EXPOSED,
            {"option": f"'{PREFIX}sink.connectionString'", "allowed": "env:NAME"},
        ),
        (
            {"sink.connectionString": f"env:{SECRET}"},
            CONFLICT,
            {"options": f"{PREFIX}source.* and {PREFIX}sink.*", "reason": "the hub ns.servicebus"},
        ),
    ],
)
def test_copy_hub_rejects_invalid_settings(
    texts: dict[str, str], condition: str, parameters: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SINK_SECRET, OTHER)
    assert read(CopyHub, COPY | {"unsendable": "/u"}).sink["connectionString"] == f"env:{SINK_SECRET}"
    assert_rejected(CopyHub, COPY, condition, parameters, **texts)


def test_sink_without_credentials_is_rejected() -> None:
    parameters = {"option": f"{SINK_SECRET} or {PREFIX}sink.fullyQualifiedNamespace"}
    assert_rejected(CopyHub, COPY, REQUIRED, parameters)


def test_unknown_prefix_is_rejected() -> None:
    with raises(SettingError, UNKNOWN, option="'spark.ehbalance.jobs.table'"):
        CopyHub.read({"spark.ehbalance.jobs.table": "/t"}, {})
