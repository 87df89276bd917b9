"""The job's settings: a secret in a property is refused and not repeated."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from jobs.stream_to_delta import PREFIX, SECRET, SOURCE, SettingError, Settings
from spark_ehbalance.source.options import STREAM, option_names

KEY = base64.b64encode(b"the-key-of-an-event-hub-01234567").decode()
STRING = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey={KEY};EntityPath=hub"
CONF = {PREFIX + "table": "/t", PREFIX + "checkpointLocation": "/c", PREFIX + "trigger": "1 s"}
CONF |= {SOURCE + "leaseTable": "/leases"}


def read(conf: dict[str, str]) -> Settings:
    return Settings.read(CONF | conf, {SECRET: STRING})


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, STRING)


@pytest.mark.parametrize("value", [KEY, STRING, f"https://a.blob.core.windows.net/c?sig={KEY}"])
@pytest.mark.parametrize(
    "name",
    [
        *(PREFIX + name for name in ("table", "checkpointLocation", "trigger", "unknown", KEY)),
        *(SOURCE + name for name in (*option_names(STREAM), "unknown", KEY) if "*" not in name),
        *(SOURCE + name for name in ("storageOptions.account_key", "storageOptions.endpoint", "storageSecrets.x")),
    ],
)
def test_a_secret_in_any_property_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        read({name: value})
    assert KEY.rstrip("=") not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value) or "(not shown" in str(caught.value) or f"{SOURCE}*" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["storageSecrets.account_key", "storageSecrets.x", "STORAGEsecrets.x", "connectionSTRING"]
)
def test_a_secret_of_a_property_is_a_reference(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(STRING)
    with pytest.raises(SettingError, match="write env:NAME"):
        read({SOURCE + name: "short"})
    reference = f"file:{tmp_path / 'secret'}"
    assert read({SOURCE + name: reference}).source[name] == reference


def test_plans_contain_only_a_reference_to_the_connection_string() -> None:
    assert read({}).source["connectionString"] == f"env:{SECRET}"


@pytest.mark.parametrize("table", ["dbfs:/x", "main.ops.leases", "/Volumes/a/b/c", "~/x"])
def test_a_relative_lease_table_is_refused_on_a_cluster(table: str) -> None:
    with pytest.raises(SettingError, match=r"source\.\*: option leaseTable=.* is wrong: allowed is "):
        read({SOURCE + "leaseTable": table})


def test_a_relative_lease_table_is_accepted_with_a_local_master() -> None:
    relative = {SOURCE + "leaseTable": "data/leases"}
    for local in ({}, {"spark.master": "local[*]"}):
        assert read(relative | local).source == {**read(relative).source}
    with pytest.raises(SettingError, match="leaseTable='data/leases' is a relative path"):
        read(relative | {"spark.master": "yarn"})
