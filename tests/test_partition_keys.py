"""Keys go where the buffered producers of Azure's SDKs send them."""

from __future__ import annotations

import pytest
from azure.eventhub._buffered_producer._partition_resolver import generate_hash_code
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.partition_keys import _hash, partition_index


@pytest.mark.parametrize(
    ("key", "hash"),
    [
        ("", 0),
        ("7", -15263),
        ("131", 30562),
        ("7149583486996073602", 12977),
        ("FWfAT", -22341),
        ("sOdeEAsyQoEuEFPGerWO", -6503),
    ],
)
def test_the_hash_is_that_of_azures_sdks(key: str, hash: int) -> None:
    assert _hash(key.encode()) == hash


def test_it_is_not_that_of_the_service() -> None:
    """Where keys were seen in a hub of two partitions: docs/service-rules.md."""
    seen = {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 1}
    assert [key for key, index in seen.items() if partition_index(f"test_partition_{key}", 2) == index] == ["e"]


@given(st.text(st.characters(max_codepoint=127)))
def test_it_is_that_of_the_python_client_too(key: str) -> None:
    assert _hash(key.encode()) == generate_hash_code(key)


def test_the_remainder_of_a_negative_hash_is_that_of_java_and_not_of_python() -> None:
    assert partition_index("7", 32) == 15263 % 32 != -15263 % 32
