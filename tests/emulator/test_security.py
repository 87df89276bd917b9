"""Tokens: checked when the emulator has keys, never repeated in errors or logs."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.eventhub import EventHubConsumerClient
from azure.eventhub._pyamqp.utils import generate_sas_token
from azure.eventhub.exceptions import AuthenticationError

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.frames import Detach
from tests.emulator.clients import FAST, detached, producer, reader, wait_until
from tests.emulator.raw import PARTITION, RawPeer, condition

KEY, SECRET = "send+listen key", "s3cr3t/with+signs="
KEYS = {KEY: SECRET}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Emulator]:
    with Emulator({"hub": 1, "other": 1}, sas_keys=KEYS) as emulator:
        yield emulator


def _sas(hub: str, seconds: float) -> str:
    return str(generate_sas_token(f"sb://localhost/{hub}", KEY, SECRET, int(time.time() + seconds)))


@pytest.mark.parametrize(("name", "key"), [(KEY, "wrong"), ("unknown", SECRET)])
def test_wrong_key_is_refused_and_not_logged(
    guarded: Emulator, name: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="spark_ehbalance")
    connection = guarded.connection_string("hub", name, key)
    with pytest.raises(AuthenticationError) as caught, reader(connection):
        pass
    with producer(connection, retry_total=0) as client, pytest.raises(AuthenticationError):
        client.get_eventhub_properties()
    assert SECRET not in str(caught.value) + caplog.text
    assert "sig=" not in caplog.text


@pytest.mark.parametrize(("hub", "seconds"), [("hub", -10), ("other", 60)], ids=["expired", "for another hub"])
def test_expired_and_foreign_tokens_are_refused(guarded: Emulator, hub: str, seconds: float) -> None:
    with _client(guarded, _sas(hub, seconds)) as client, pytest.raises(AuthenticationError):
        client.get_partition_ids()


def test_receiver_without_a_token_is_refused(guarded: Emulator) -> None:
    with RawPeer.opened(guarded) as peer:
        peer.attach_receiver(f"{PARTITION}0")
        assert condition(peer.expect(Detach)) == "amqp:unauthorized-access"


class _FixedCredential:
    """A credential with one token, which the client assumes to be valid for an hour."""

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        return AccessToken(self._token, int(time.time()) + 3600)


def _jwt(claims: object) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join([*parts, "signature"])


def _client(emulator: Emulator, token: str) -> EventHubConsumerClient:
    credential: Any = _FixedCredential(token)
    return EventHubConsumerClient(f"localhost:{emulator.port}", "hub", "$Default", credential, use_tls=False, **FAST)


CLAIMS = ([], {}, {"exp": "soon"}, {"exp": 10**40}, {"exp": 4e9})


@pytest.mark.parametrize("token", ["x", "a.b.c", "..", "a.W1td.c", *map(_jwt, CLAIMS)])
def test_without_keys_a_token_without_expiry_is_accepted(emulator: Emulator, connection: str, token: str) -> None:
    with _client(emulator, token) as client:
        assert len(client.get_partition_ids()) == 4


@pytest.mark.parametrize(
    "token",
    [
        _jwt({"exp": 1_700_000_000}),
        _jwt({"exp": 1.7e9}),
        generate_sas_token("sb://localhost/hub", "k", "s", 1_700_000_000),
    ],
)
def test_without_keys_an_expired_token_is_refused(emulator: Emulator, connection: str, token: str) -> None:
    with RawPeer.opened(emulator) as peer:
        answer = peer.request("$cbs", token, operation="put-token", type="jwt", name="sb://localhost/hub").application
    assert (answer["status-code"], answer["error-condition"]) == (401, "com.microsoft:auth-failed")
    assert re.search(r"ExpiredToken.*11/14/2023", answer["status-description"])
    with _client(emulator, token) as client, pytest.raises(AuthenticationError):
        client.get_partition_ids()


def test_link_with_an_expired_token_is_detached(emulator: Emulator, connection: str) -> None:
    emulator.token_life(1.0)
    with reader(connection) as events:
        error = detached(events)
    assert error.error == "link:detach-forced"
    assert re.search(r"RenewToken.*'Listen' claim\(s\).*hub/consumergroups", str(error))


def test_renewed_token_keeps_the_link(emulator: Emulator, connection: str) -> None:
    emulator.token_life(2.0)
    with reader(connection) as renewed, reader(connection):
        emulator.token_life(0)
        renewed._consumer._handler._cbs_authenticator.update_token()
        renewed.poll()
        wait_until(lambda: len(emulator.readers("hub", 0)) == 1, "the reader with the old token is detached")
        renewed.poll()  # would raise


def test_default_address_is_loopback() -> None:
    with Emulator(websocket_port=0) as emulator:
        listeners = emulator._server._listeners
        assert [listener.sockets[0].getsockname()[0] for listener in listeners] == ["127.0.0.1"] * 2
