"""Settings and main program of a job; secrets in properties are rejected and not repeated."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_ehbalance.jobs import PREFIX, SettingError, main, program
from spark_ehbalance.jobs.settings import SECRET
from spark_ehbalance.jobs.stream_to_delta import Settings
from spark_ehbalance.query.options import STREAM, option_names
from tests.raising import raises

SOURCE, SINK = PREFIX + "source.", PREFIX + "sink."
KEY = base64.b64encode(b"the-key-of-an-event-hub-01234567").decode()
STRING = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey={KEY};EntityPath=hub"
CONF = {PREFIX + "table": "/t", PREFIX + "checkpointLocation": "/c", PREFIX + "trigger": "1 s"}
CONF |= {SOURCE + "leaseTable": "/leases"}


def read(conf: dict[str, str]) -> Settings:
    return Settings.read(CONF | conf, {SECRET: STRING})


def test_spark_connect_is_rejected_in_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "jobs.stream_to_delta"],
        env={**os.environ, "SPARK_REMOTE": "sc://localhost"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("Error: this job needs its own driver: ")
    assert result.stderr.count("\n") == 1


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, STRING)


@pytest.mark.parametrize("value", [KEY, STRING, f"https://a.blob.core.windows.net/c?sig={KEY}"])
@pytest.mark.parametrize(
    "name",
    [
        *(PREFIX + name for name in ("table", "checkpointLocation", "trigger", "unknown", KEY)),
        *(SINK + name for name in ("mergeSchema", "unknown", KEY)),
        *(SOURCE + name for name in (*option_names(STREAM), "unknown", KEY) if "*" not in name),
        *(SOURCE + name for name in ("storageOptions.account_key", "storageOptions.endpoint", "storageSecrets.x")),
    ],
)
def test_secret_in_any_property_is_rejected_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        read({name: value})
    assert KEY.rstrip("=") not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value) or "(not shown" in str(caught.value) or SOURCE in str(caught.value)


@pytest.mark.parametrize(
    "name", ["storageSecrets.account_key", "storageSecrets.x", "STORAGEsecrets.x", "connectionSTRING"]
)
def test_secrets_are_references(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(STRING)
    with raises(SettingError, "EHB_SECRET_EXPOSED", option=f"'{SOURCE}{name}'", allowed=re.compile("env:NAME")):
        read({SOURCE + name: "short"})
    reference = f"file:{tmp_path / 'secret'}"
    assert read({SOURCE + name: reference}).source[name] == reference
    assert read({}).source["connectionString"] == f"env:{SECRET}", "plans contain the reference only"


def test_invalid_setting_ends_the_job_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = CONF | {PREFIX + "trigger": "soon"}
    monkeypatch.setattr(program.SparkContext, "_ensure_initialized", lambda: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(program, "SparkConf", lambda: SimpleNamespace(getAll=conf.items))
    monkeypatch.setattr(program, "SparkSession", None)
    with pytest.raises(SystemExit) as end:
        main(Settings, lambda spark, settings: None)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Error: [EHB_OPTION_INVALID] {PREFIX}trigger='soon' ")


def test_jvm_error_is_reported_on_one_line() -> None:
    error = RuntimeError(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Return Message: Traceback (most recent call last):\n"
        '  File "clientserver.py", line 644, in _call_proxy\n'
        "py4j.protocol.Py4JJavaError: An error occurred while calling o183.agg.\n"
        ": org.apache.spark.SparkException: Cannot find catalog plugin class: DeltaCatalog.\n\tat a.B.c(B.scala:1)\n"
        "Caused by: java.lang.ClassNotFoundException: DeltaCatalog\n\tat a.B.c(B.scala:1)\n\t... 64 more\n\n"
        " SQLSTATE: 39000\n=== Streaming Query ===\nLogical Plan:\n+- ~StreamingDataSourceV2ScanRelation ehbalance\n"
    )
    assert (
        program.single_line(error) == "org.apache.spark.SparkException: Cannot find catalog plugin class: DeltaCatalog."
    )


def test_writer_options_are_passed_on() -> None:
    assert read({SINK + "mergeSchema": "true", SINK + "source": "new"}).sink == {"mergeSchema": "true", "source": "new"}


@pytest.mark.parametrize(
    ("name", "text", "condition", "parameter"),
    [
        ("sink.path", "/u", "EHB_OPTION_UNKNOWN", {"hint": f" {SINK}compression, "}),
        ("table", "delta.`/t`", "EHB_OPTION_INVALID", {"allowed": "either a path or a name"}),
        ("sink.mergeSchema", "yes", "EHB_OPTION_INVALID", {"allowed": "true or false"}),
        ("sink.maxRecordsPerFile", "abc", "EHB_OPTION_INVALID", {"allowed": "a whole number"}),
        ("sink.source", "", "EHB_OPTION_INVALID", {"allowed": "a name"}),
        *(
            (name, "x", "EHB_OPTION_UNKNOWN", {"hint": f" {PREFIX}table, "})
            for name in ("TABLE", "tables", "source", "sinks.path")
        ),
        ("table", " ", "EHB_OPTION_REQUIRED", {"reason": "a path or "}),
        ("checkpointLocation", " ", "EHB_OPTION_REQUIRED", {"reason": "a path or "}),
        ("trigger", " ", "EHB_OPTION_REQUIRED", {"reason": "availableNow or "}),
    ],
)
def test_invalid_unknown_and_missing_settings_are_rejected(
    name: str, text: str, condition: str, parameter: dict[str, str]
) -> None:
    patterns = {key: re.compile(re.escape(value)) for key, value in parameter.items()}
    with raises(SettingError, condition, option=re.compile(re.escape(PREFIX + name) + "'?$"), **patterns):
        read({PREFIX + name: text})


@pytest.mark.parametrize(
    "name", [PREFIX + "table", PREFIX + "checkpointLocation", SOURCE + "leaseTable", SOURCE + "LEASETABLE"]
)
def test_relative_path_requires_a_local_master(name: str) -> None:
    conf = {key: value for key, value in CONF.items() if key.lower() != name.lower()} | {name: "data/x"}
    for local in ({}, {"spark.master": "local[*]"}):
        Settings.read(conf | local, {SECRET: STRING})
    with raises(SettingError, "EHB_OPTION_INVALID", option=name, value="'data/x'", allowed=re.compile("absolute path")):
        Settings.read(conf | {"spark.master": "yarn"}, {SECRET: STRING})
    read({PREFIX + "table": "ops.events", "spark.master": "yarn"})
