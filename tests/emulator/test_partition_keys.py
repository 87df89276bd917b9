"""The partitions of keys are the same as the service's, as far as that is known."""

from __future__ import annotations

import pytest
from azure.eventhub._buffered_producer._partition_resolver import generate_hash_code
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.emulator.partition_keys import _hash, partition_for_key


def test_keys_observed_in_a_namespace() -> None:
    """In two hubs with two partitions. Source: test_send_with_partition_key in azure-sdk-for-python,
    tests/amqpproxy_recordings."""
    assert [partition_for_key(f"test_partition_{letter}", 2) for letter in "abcdef"] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("key", "partition", "partitions"),
    [
        ("00000000-0101-0202-B117-DEADDEADBEEF", 1, 2),
        ("00000000-0202-0303-8E30-DEADDEADBEEF", 2, 3),
        ("00000000-0606-0707-ACDC-DEADDEADBEEF", 6, 7),
        ("00000000-1010-1212-AF3A-DEADDEADBEEF", 10, 12),
        ("00000000-0909-3232-A703-DEADDEADBEEF", 9, 32),
        ("00000000-3131-3232-B974-DEADDEADBEEF", 31, 32),
    ],
)
def test_keys_of_the_published_function(key: str, partition: int, partitions: int) -> None:
    assert partition_for_key(key, partitions) == partition
    assert partition_for_key(key.lower(), partitions) == partition


@given(st.text(st.characters(max_codepoint=127)))
def test_hash_equals_the_clients_in_16_bits(key: str) -> None:
    assert _hash(key.encode()) & 0xFFFF == generate_hash_code(key) & 0xFFFF


@given(st.text(), st.integers(1, 2000))
def test_every_key_has_a_partition(key: str, partitions: int) -> None:
    assert 0 <= partition_for_key(key, partitions) < partitions
