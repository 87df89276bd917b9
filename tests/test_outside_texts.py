"""Searches in texts from storage, a table or a hub take linear time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_ehbalance.eventhub.service_errors import ErrorKind, classify
from spark_ehbalance.lease_table.delta.folder import storage_error_text
from spark_ehbalance.settings.secrets import hide
from tests.growth import assert_linear


def without_secrets(text: str) -> str:
    return storage_error_text(OSError(text))


def without_signature(text: str) -> str:
    return hide(text, ["sig=abc"])


def refused(text: str) -> ErrorKind:
    return classify("amqp:not-found", f"entity '{text}")


@pytest.mark.parametrize(
    ("search", "unit"),
    [
        *((without_secrets, unit) for unit in ("?", "?a", "//a:", "\x1b[1", " ", "a\n")),
        *((without_signature, unit) for unit in ("%25", "&#0", "&#x0", "\\", "ab", "a%2")),
        *((refused, unit) for unit in (":eventhub:", "|", ":eventhub:|", "':eventhub:a|")),
    ],
)
def test_searches_take_linear_time(search: Callable[[str], object], unit: str) -> None:
    assert_linear(search, unit)


def test_query_strings_of_addresses_are_hidden() -> None:
    text = without_secrets(
        "GET https://x/c?a=b&sig=secret failed, and https://y/?sig=secret?sig=secret too: really? yes = no"
    )
    assert text == "GET https://x/c?… failed, and https://y/?… too: really? yes = no"


def test_storage_errors_have_no_full_stop() -> None:
    assert without_secrets("Invalid Access Key\nInvalid symbol 32, offset 9.") == (
        "Invalid Access Key Invalid symbol 32, offset 9"
    )
