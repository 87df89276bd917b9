"""Requests that the service rejects, and its request limit."""

from __future__ import annotations

import re

import pytest

from spark_ehbalance.errors import EhBalanceError, HubUnavailableError
from spark_ehbalance.eventhub.client_errors import CredentialsRefusedError, TransientError
from spark_ehbalance.eventhub.metadata import HubMetadata
from tests.service.hub import Hub
from tests.service.test_reading import reading


def test_forty_requests_use_one_connection(hub: Hub) -> None:
    with hub.metadata() as metadata:
        ids = metadata.partition_ids()
        for _ in range(40 // len(ids) or 1):
            assert metadata.partition_states(ids).keys() == set(ids)


def test_missing_hub_is_an_error(hub: Hub) -> None:
    raw = {**hub.raw, "eventHubName": "there-is-no-such-hub"}
    if "connectionString" in raw:
        raw["connectionString"] = re.sub(r";?EntityPath=[^;]*", "", raw["connectionString"])
    missing = Hub(raw, hub.tables, hub.is_real).connection
    with HubMetadata(missing, hub.consumer_group) as metadata, pytest.raises(HubUnavailableError) as raised:
        metadata.partition_ids()
    assert "there-is-no-such-hub" in str(raised.value)


def test_missing_consumer_group_is_an_error(hub: Hub) -> None:
    missing = Hub({**hub.raw, "consumerGroup": "there-is-no-such-group"}, hub.tables, hub.is_real)
    with reading(missing, "0", 0) as receiver, pytest.raises((EhBalanceError, TransientError), match="no-such-group"):
        receiver.receive(1, 1.0)


def test_wrong_key_is_an_error(hub: Hub) -> None:
    if "connectionString" not in hub.raw:
        pytest.skip("this hub is reached by Entra ID")
    text = re.sub(r"SharedAccessKey=[^;]*", "SharedAccessKey=d3Jvbmc=", hub.raw["connectionString"])
    wrong = Hub({**hub.raw, "connectionString": text}, hub.tables, hub.is_real)
    with reading(wrong, "0", 0) as receiver, pytest.raises(CredentialsRefusedError) as raised:
        receiver.receive(1, 1.0)
    assert "d3Jvbmc=" not in str(raised.value)
