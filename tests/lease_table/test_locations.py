"""Locations of lease tables: each has one canonical form, and the error for a rejected one suggests an alternative."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import AzureStore

from spark_ehbalance.errors import OptionError, StoreUnavailableError
from spark_ehbalance.lease_table.delta.locations import library_arguments
from spark_ehbalance.lease_table.delta.storage import open_storage
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.ops.arguments import StorageOptions
from spark_ehbalance.query.options import batch_options, checked_location, storage_options, stream_options
from spark_ehbalance.query.processes import parse_submit_settings
from spark_ehbalance.spark.datasource import EhBalanceDataSource
from tests.lease_table.store_conformance import GROUP
from tests.raising import raises

HUB = {"fullyQualifiedNamespace": "n.servicebus.windows.net", "eventHubName": "hub"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("file:///x/y", "/x/y"),
        ("file:/x/y", "/x/y"),
        ("FILE://localhost/x/y%20z/", "/x/y z"),
        ("/x//y/./z/../", "/x/y"),
        ("//x/y/", "/x/y"),
        ("/x/100%/50% of it#1&2;3", "/x/100%/50% of it#1&2;3"),
        ("/Volumes-of-ours/x", "/Volumes-of-ours/x"),
        ("/x/main.ops.leases", "/x/main.ops.leases"),
        ("abfss://c@Account.dfs.core.windows.net//a/./b c/../d/", "abfss://c@account.dfs.core.windows.net/a/d"),
        ("ABFSS://c@a.b/x%20y", "abfss://c@a.b/x%20y"),
        ("abfss://c@a.b/x y", "abfss://c@a.b/x%20y"),
        ("s3://bucket/%6Ceases", "s3://bucket/leases"),
    ],
)
def test_spellings_of_a_location_have_the_same_canonical_form(written: str, meant: str) -> None:
    assert checked_location(written) == meant
    assert checked_location(meant) == meant
    assert stream_options(HUB | {"leaseTable": written}).lease_table == meant


WRONG = [
    ("dbfs:/x", "abfss://"),
    ("HDFS://ProdNS:8020/x", "does not support HDFS"),
    ("abfss:/c@a/x", "two slashes"),
    ("main.ops.leases", "./main.ops.leases"),
    ("ops.leases", "catalog"),
    ("/Volumes/main/ops/leases", "rename"),
    ("/dbfs/x", "rename"),
    ("~/x", "absolute path"),
    ("C:\\leases", "backslashes"),
    ("a\\b", "backslashes"),
    ("file://host/x", "file:///PATH"),
    ("file:///x%5Cy", "backslashes"),
    ("file:///x%zz", "%20 for a space"),
    ("uc://main.ops.leases", "abfss://"),
    ("/", "below /"),
    ("abfss://c@a.b/", "folder"),
    ("abfss://c@a.b/x#y", "without #"),
    ("abfss://c@a.b/x%2520y", "escaped %"),
    ("abfss://c@a.b/x%00y", "control characters"),
    ("s3://user@bucket/x", "without a user"),
    ("/x/d%20e", "hexadecimal"),
    ("x?y", "wildcards"),
    ("x^y", "carets"),
    ("s3://bucket/%ff", "UTF-8"),
]


@pytest.mark.parametrize(("written", "hint"), WRONG)
def test_ambiguous_location_is_rejected_and_nothing_is_created(
    written: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for refused in (
        lambda: checked_location(written),
        lambda: stream_options(HUB | {"leaseTable": written}),
        lambda: EhBalanceDataSource({**HUB, "leaseTable": written}),
    ):
        with raises(OptionError, "EHB_OPTION_INVALID", option="leaseTable", value=repr(written)) as error:
            refused()
        assert hint in str(error.value.parameters["allowed"])
        assert str(error.value.parameters["allowed"]).startswith(("a ", "an ", "the ", "file:"))
        assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "address",
    [
        "abfss://c:theSecret123@a.b/x",
        "https://user:theSecret123@a.b/x",
        "https://account.blob.core.windows.net/c/t?sv=2024&sig=theSecret123%3D",
    ],
)
def test_secret_in_an_address_is_rejected_and_hidden(address: str) -> None:
    with pytest.raises(OptionError, match="leaseTable") as error:
        checked_location(address)
    assert "theSecret123" not in str(error.value)


KEY = {"account_key": "a2V5"}


@pytest.mark.parametrize(
    ("cloud", "endpoint"),
    [
        ("acct.dfs.core.usgovcloudapi.net", "https://acct.blob.core.usgovcloudapi.net"),
        ("acct.dfs.core.chinacloudapi.cn", "https://acct.blob.core.chinacloudapi.cn"),
        ("acct.z12.dfs.storage.azure.net", "https://acct.z12.blob.storage.azure.net"),
    ],
)
def test_accounts_in_all_clouds_are_opened(cloud: str, endpoint: str) -> None:
    opened = ("az://c/a/x%20y", KEY | {"account_name": "acct", "endpoint": endpoint})
    blobs = cloud.replace(".dfs.", ".blob.")
    addresses = [f"{kind}://c@{host}" for kind in ("abfs", "abfss") for host in (cloud, blobs)]
    for text in [f"{address}/a/x y" for address in (*addresses, f"https://{cloud}/c", f"https://{blobs}/c")]:
        location = checked_location(text)
        assert library_arguments(location, KEY) == opened
        assert library_arguments(location, KEY | {"azure_storage_account_name": "acct"}) == opened
        own = {"azure_storage_endpoint": "https://gateway.example.com"}
        assert library_arguments(location, KEY | own)[1] == KEY | own | {"account_name": "acct"}
        storage = open_storage(*library_arguments(location, KEY))
        assert isinstance(storage, AzureStore)
        assert (storage.config["account_name"], storage.config["endpoint"]) == ("acct", endpoint)
        assert (storage.config["container_name"], storage.prefix) == ("c", "a/x y")


@pytest.mark.parametrize(
    ("location", "opened"),
    [
        ("https://acct.blob.core.windows.net/c/x", "abfss://c@acct.blob.core.windows.net/x"),
        ("https://acct.dfs.core.windows.net/c/x", "abfss://c@acct.dfs.core.windows.net/x"),
        ("https://onelake.dfs.fabric.microsoft.com/ws/x", "abfss://ws@onelake.dfs.fabric.microsoft.com/x"),
        *((same, same) for same in ("abfss://c@acct.dfs.core.windows.net/x", "az://c/x", "s3://b/x", "gs://b/x", "/x")),
    ],
)
def test_supported_addresses_are_unchanged(location: str, opened: str) -> None:
    assert library_arguments(location, KEY) == (opened, KEY)
    if opened.startswith("abfss:"):
        assert isinstance(open_storage(opened, KEY), AzureStore)


@pytest.mark.parametrize("address", ["https://example.com/c/x", "https://acct.core.windows.net/c/x"])
def test_address_of_another_web_server_is_rejected(address: str) -> None:
    with pytest.raises(OptionError, match="an https address of a storage account, such as https://ACCOUNT"):
        checked_location(address)


@pytest.mark.parametrize("address", ["https://acct.blob.core.invalid/c/x", "abfss://c@acct.dfs.core.invalid/x"])
def test_unreachable_account_is_not_a_missing_table(address: str) -> None:
    store = DeltaStore(checked_location(address), KEY | {"max_retries": "0", "timeout": "10s"})
    with raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE", action="read") as error:
        store.read()
    assert "acct.blob.core.invalid" in str(error.value)


@given(st.text(max_size=40))
def test_any_text_has_a_canonical_form_or_is_rejected(text: str) -> None:
    with contextlib.suppress(OptionError):
        meant = checked_location(text)
        assert checked_location(meant) == meant
        assert meant.startswith("/") or "://" in meant


@pytest.mark.parametrize("name", ["p%", "a b", "h#i", "ü", "a;b&c=d+e,f~g:h@j", "file"])
def test_table_works_at_any_accepted_location(tmp_path: Path, name: str) -> None:
    here = tmp_path / name
    with DeltaStore(checked_location(str(here))) as store, DeltaStore(checked_location(here.as_uri())) as same:
        store.create(GROUP)
        made = same.read()
        written = store.write(store.read(), made)
        assert same.read() == written
        store.record([])
        assert same.history() == []
        same.maintain()
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}_history"}


@pytest.mark.parametrize(
    ("name", "value", "safe", "table", "other"),
    [
        ("allow_unsafe_rename", "1", "false", "/x", None),
        ("Mount_Allow_Unsafe_Rename", "true", "false", "/x", "s3://b/x"),
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "Yes", "false", "s3a://b/x", "/x"),
        ("AWS_CONDITIONAL_PUT", "disabled", "etag", "s3://b/x", "abfss://c@a.b/x"),
        ("AWS_S3_LOCKING_PROVIDER", "dynamodb", None, "s3://b/x", "/x"),
    ],
)
def test_unsafe_storage_options_are_rejected(
    name: str, value: str, safe: str | None, table: str, other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, option = HUB | {"leaseTable": table}, f"storageOptions.{name}"
    with raises(OptionError, "EHB_OPTION_NOT_APPLICABLE", option=re.compile(f"(?i)^{option}$")):
        stream_options(shared | {option: value})
    if safe is not None:
        assert storage_options({name: safe}, {}, table) == {name: safe}
    if other is None:
        return
    monkeypatch.setenv(name, value)
    for opened in (lambda: stream_options(shared), lambda: StorageOptions().open(table)):
        with raises(OptionError, "EHB_OPTION_NOT_APPLICABLE", option=f"Environment variable {name}"):
            opened()
    if safe is not None:
        assert stream_options(shared | {option: safe}).lease_table == table
    assert stream_options(HUB | {"leaseTable": other}).lease_table == other
    stream_options(HUB)
    batch_options(HUB)


# --- relative paths ---------------------------------------------------------------------------------------------


SUBMIT = "org.apache.spark.deploy.SparkSubmit"


def test_master_is_read_from_the_submit_command(tmp_path: Path) -> None:
    def master(*words: str) -> str | None:
        words = ("/jdk/bin/java", "-cp", "/x", *words)
        return parse_submit_settings(words, {"SPARK_CONF_DIR": str(tmp_path)}).get("spark.master")

    assert master(SUBMIT, "--conf", "spark.master=local[1]", "pyspark-shell") == "local[1]"
    assert master(SUBMIT, "--master", "yarn", "job.py") == "yarn"
    assert master(SUBMIT, "job.py") == "local[*]", "spark-submit's own default"
    properties = tmp_path / "job.conf"
    properties.write_text("# spark.master yarn\nspark.app.name x\nspark.master    spark://host:7077\n")
    assert master(SUBMIT, "--properties-file", str(properties), "job.py") == "spark://host:7077"
    (tmp_path / "spark-defaults.conf").write_text("spark.master=k8s://x\n")
    assert master(SUBMIT, "job.py") == "k8s://x"
    assert master("org.apache.spark.deploy.yarn.ApplicationMaster") is None
    with_variable = parse_submit_settings(
        (SUBMIT, "job.py"), {"SPARK_CONF_DIR": "/none", "MASTER": "spark://host:7077"}
    )
    assert with_variable == {"spark.master": "spark://host:7077"}


def test_jvm_is_found_among_a_processs_ancestors(tmp_path: Path) -> None:
    """A Python worker is a child of a daemon, which is a child of the JVM."""
    command = "from spark_ehbalance.query.processes import spark_master; print(spark_master())"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {command!r}])"
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    for name, expected in ((str(java), "yarn"), (sys.executable, "None")):
        # The daemon's parent has a command line that begins with `name`.
        script = f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', {child!r}])"
        command = [name, "-c", script, SUBMIT, "--master", "yarn"]
        done = subprocess.run(command, executable=sys.executable, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize("master", ["yarn", "spark://h:1", "k8s://h", None])
def test_relative_path_is_rejected_without_a_local_master(master: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ehbalance.spark.datasource.spark_master", lambda: master)
    for table in ("leases", "./a.b.c", "../x", "file:x/../y"):
        with pytest.raises(OptionError, match="leaseTable="):
            EhBalanceDataSource({**HUB, "leaseTable": table})
    EhBalanceDataSource({**HUB, "leaseTable": "/x"})
    EhBalanceDataSource({**HUB, "leaseTable": "abfss://c@a.b/x"})
    monkeypatch.setattr("spark_ehbalance.spark.datasource.spark_master", lambda: "local[2]")
    EhBalanceDataSource({**HUB, "leaseTable": "leases"})
    assert stream_options(HUB | {"leaseTable": "./a.b"}).lease_table == os.path.abspath("a.b")
