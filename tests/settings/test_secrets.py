"""Secrets in options: accepted where Spark hides them or by reference, rejected elsewhere, and never repeated."""

from __future__ import annotations

import base64
import os
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.errors import OptionError
from spark_ehbalance.query.options import BATCH, STREAM, batch_options, option_names, stream_options
from spark_ehbalance.settings.secrets import is_hidden_by_spark, is_secret_name, looks_secret, may_be_secret
from tests.growth import assert_linear

HUB_KEY = "c29tZUV2ZW50SHVic0tleV8wMTIzNDU2Nzg5YWJjZGU="  # 44 characters, like Event Hubs keys
ACCOUNT_KEY = base64.b64encode(bytes(range(64))).decode()  # 88, like storage account keys
SIGNED = f"https://account.blob.core.windows.net/c/t?sv=2024-01-01&sp=r&sig={quote(HUB_KEY, safe='')}"
TOKEN = "eyJhbGciOiJSUzI1NiIsIng1dCI6.eyJhdWQiOiJodHRwczovL3N0b3Jh.c2lnbmF0dXJl"
SERVICE_ACCOUNT = '{"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIE"}'
CLIENT_SECRET = (
    "Ab~8Q~x.Y-z_0123456789abcdefghijklmnopqr"  # an Entra ID secret: 40 characters, with 8Q~ from the fourth on
)
CERTIFICATE = f"-----BEGIN CERTIFICATE-----\n{ACCOUNT_KEY[:64]}\n{HUB_KEY}\n-----END CERTIFICATE-----\n"
RSA_KEY = CERTIFICATE.replace("CERTIFICATE", "RSA PRIVATE KEY")
STRING = f"Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=reader;SharedAccessKey={HUB_KEY};EntityPath=hub"
BY_SIGNATURE = (
    "Endpoint=sb://ns.servicebus.windows.net/;EntityPath=hub;SharedAccessSignature="
    f"SharedAccessSignature sr=sb%3a%2f%2fns&sig={quote(HUB_KEY)}&se=1900000000&skn=reader"
)
SECRETS = [HUB_KEY, ACCOUNT_KEY, quote(ACCOUNT_KEY, safe=""), SIGNED, TOKEN, SERVICE_ACCOUNT, STRING, BY_SIGNATURE]
SECRETS += [CLIENT_SECRET, CLIENT_SECRET.replace("~", "%7E"), RSA_KEY]
SHARED = {"connectionString": STRING, "leaseTable": "/tmp/leases"}

#: Every option, including aliases, through which delta-rs, object_store or delta-rs's DynamoDB lock accepts a secret.
SECRET_NAMES = [
    *("account_key", "access_key", "master_key", "azure_storage_account_key", "azure_storage_access_key"),
    *("azure_storage_master_key", "client_secret", "azure_client_secret", "azure_storage_client_secret"),
    *("sas_key", "sas_token", "azure_storage_sas_key", "azure_storage_sas_token", "bearer_token", "token"),
    *("azure_storage_token", "fabric_session_token", "azure_fabric_session_token"),
    *("aws_access_key_id", "access_key_id", "aws_secret_access_key", "secret_access_key", "aws_session_token"),
    *("aws_token", "session_token", "aws_sse_customer_key_base64", "aws_access_key_id_dynamodb"),
    *("aws_secret_access_key_dynamodb", "aws_session_token_dynamodb"),
    *("google_service_account_key", "service_account_key", "google_bearer_token"),
    *("databricks_token", "unity_client_secret", "password"),
]
PUBLIC_NAMES = [
    *("account_name", "azure_storage_client_id", "azure_tenant_id", "authority_host", "azure_msi_endpoint"),
    *("federated_token_file", "azure_fabric_token_service_url", "skip_signature", "use_emulator", "container_name"),
    *("region", "aws_endpoint_url", "aws_sse_kms_key_id", "aws_sse_bucket_key_enabled", "aws_role_arn"),
    *("aws_web_identity_token_file", "aws_container_authorization_token_file", "aws_virtual_hosted_style_request"),
    *("google_service_account", "google_application_credentials", "timeout", "max_retries", "proxy_url"),
    *("credential_type", "allow_http", "user_agent"),
]
SPARK_HIDES = re.compile("(?i)secret|password|token|access[.]?key")  # Spark's default


def refusal(raw: Mapping[str, str], secret: str, *, batch: bool = False) -> str:
    with pytest.raises(OptionError) as caught:
        (batch_options if batch else stream_options)(raw)
    message = str(caught.value)
    assert "\n" not in message
    shown = "".join(traceback.format_exception(caught.value))  # Spark displays and logs the whole option
    for start in range(0, len(secret) - 12, 12):
        assert secret[start : start + 12] not in shown
    return message


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_storage_option_visible_in_spark_is_rejected(name: str) -> None:
    for cased in (name, name.upper()):
        message = refusal(SHARED | {f"storageOptions.{cased}": "hunter2"}, "hunter2")
        assert f"storageSecrets.{name}" in message
        assert "hunter2" not in message
        assert SPARK_HIDES.search(f"storageSecrets.{cased}")
        assert stream_options(SHARED | {f"storageSecrets.{cased}": "hunter2"}).storage_options == {name: "hunter2"}


@pytest.mark.parametrize("secret", [*SECRETS, "http://user:secretword@proxy:8080"])
def test_storage_option_is_rejected_because_of_its_value(secret: str) -> None:
    assert "storageSecrets.proxy_url" in refusal(SHARED | {"storageOptions.proxy_url": secret}, secret)


@pytest.mark.parametrize(
    "option",
    [n for n in dict.fromkeys(option_names(STREAM) + option_names(BATCH)) if "*" not in n and n != "connectionString"],
)
def test_secret_in_any_other_option_is_rejected_and_not_repeated(option: str) -> None:
    batch = option not in option_names(STREAM)
    raw = {"connectionString": STRING} if batch else SHARED
    for secret in SECRETS:
        assert option in refusal(raw | {option: secret}, secret, batch=batch)


@pytest.mark.parametrize(
    "secret", [HUB_KEY, ACCOUNT_KEY, HUB_KEY.strip("="), ACCOUNT_KEY.strip("="), "0f" * 32, CLIENT_SECRET]
)
@pytest.mark.parametrize("prefix", ["", "storageOptions.", "storageSecrets.", "race."])
def test_secret_as_an_option_name_is_not_repeated(prefix: str, secret: str) -> None:
    refusal(SHARED | {prefix + secret: "1"}, secret.lower())


@pytest.mark.parametrize(
    "value", ["0f" * 32, HUB_KEY.strip("="), "AKIA/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "[]"]
)
def test_invalid_value_that_might_be_a_key_is_not_repeated(value: str) -> None:
    message = refusal(SHARED | {"prefetch": value}, value)
    assert message.startswith("[EHB_OPTION_INVALID] prefetch=")
    assert (value in message) == (value == "[]")


@pytest.mark.parametrize("unit", ["a", "aB3", "://a:", "eyJa-", "token ", "-----BEGIN CERTIFICATE-----"])
def test_search_for_secrets_takes_linear_time(unit: str) -> None:
    assert not looks_secret(unit * 50_000)
    assert_linear(may_be_secret, unit)


@given(st.binary(min_size=32, max_size=64))
def test_azure_keys_look_secret(key: bytes) -> None:
    text = base64.b64encode(key).decode()
    if text.endswith("="):
        assert looks_secret(text)
        assert looks_secret(quote(text, safe=""))
        assert looks_secret(f"/some/folder/{text}")
    if re.search(r"\d", text):
        assert may_be_secret(text)


@pytest.mark.parametrize(
    "value",
    [
        "abfss://container@account0123456789.dfs.core.windows.net/leases/flights-2024",
        "abfss://0fe8a1b2-1111-2222-3333-444455556666@onelake.dfs.fabric.microsoft.com/77aa0bcd-1234/Tables/leases",
        "/lake/partition_key=customer-4711/leases",
        "s3://bucket/year=2024/month=12/leases",
        "ip-10-0-0-1-0123456789ab",
        "private_key_events",
        "/lake/private_keys/leases",
        CERTIFICATE,
        "-----BEGIN PUBLIC KEY-----",
        "TelemetryEventsOfWestEurope2Production2024",
        '{"0": 4711, "*": "2026-01-31T12:00:00Z"}',
    ],
)
def test_harmless_texts_do_not_look_secret(value: str) -> None:
    assert not looks_secret(value)


# --- references ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [STRING, BY_SIGNATURE])
def test_connection_string_can_be_a_reference(secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_STRING", f" {secret}\n")
    (tmp_path / "string").write_text(secret + "\r\n")
    (tmp_path / "marked").write_text(secret, encoding="utf-8-sig")
    (tmp_path / "link").symlink_to("string")
    files = [f"file:{tmp_path / name}" for name in ("string", "marked", "link")]
    for reference in ("env:THE_STRING", "ENV:THE_STRING", *files, files[0].replace("file:", "File:")):
        connection = stream_options({"connectionString": reference}).connection
        assert (connection.connection_string, connection.hub) == (secret, "hub")


def test_connection_string_visible_in_spark_needs_a_reference() -> None:
    assert SPARK_HIDES.search(STRING)
    assert not SPARK_HIDES.search(BY_SIGNATURE)
    assert "env:NAME" in refusal({"connectionString": BY_SIGNATURE}, HUB_KEY)
    assert is_hidden_by_spark(STRING)


def test_secret_storage_options_can_be_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", ACCOUNT_KEY)
    (tmp_path / "account.json").write_text(SERVICE_ACCOUNT)
    for prefix in ("storageOptions", "storageSecrets"):
        raw = {f"{prefix}.account_key": "env:THE_KEY", f"{prefix}.service_account_key": f"file:{tmp_path}/account.json"}
        found = stream_options(SHARED | raw).storage_options
        assert found == {"account_key": ACCOUNT_KEY, "service_account_key": SERVICE_ACCOUNT}


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("env:BLANK", "no such variable"),
        ("env:a=b\x00", "no such variable"),
        (f"env:{HUB_KEY}", "no such variable"),
        ("file:/a\x00b", "cannot read the file"),
        (f"file:/{HUB_KEY}", "No such file"),
        ("file:FOLDER/pipe", "not a regular file"),
        ("file:FOLDER/empty", "1 to 65536 bytes"),
        ("file:FOLDER/large", "1 to 65536 bytes"),
        ("file:FOLDER/binary", "not UTF-8 text"),
        ("file:/dev/zero", "not a regular file"),
    ],
)
@pytest.mark.parametrize("option", ["connectionString", "storageSecrets.account_key"])
def test_error_names_a_reference_to_a_missing_secret(
    option: str, reference: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLANK", " ")
    for name, content in (("empty", b"\n"), ("large", b"x" * 65537), ("binary", b"\xff\xfe")):
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    message = refusal(SHARED | {option: reference.replace("FOLDER", str(tmp_path))}, HUB_KEY)
    assert message.startswith(f"[EHB_SECRET_UNAVAILABLE] {option}=")
    assert why in message


def test_secret_names_are_recognized() -> None:
    assert all(is_secret_name(name) for name in SECRET_NAMES)
    assert not any(is_secret_name(name) for name in PUBLIC_NAMES)
