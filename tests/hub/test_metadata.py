"""What a hub says of itself, over one kept connection and by the client's public calls."""

from __future__ import annotations

import time

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.metadata import HubMetadata, PartitionState
from tests.source.support import HUB, hub_options

KEY = "theRightKey"


def fill(emulator: Emulator) -> None:
    """Partition 0 stays empty, 1 has 5 events, 2 had 5 and lost 3."""
    emulator.append(HUB, 1, [b"x"] * 5)
    emulator.append(HUB, 2, [b"x"] * 5)
    emulator.trim(HUB, 2, 3)


def opened(metadata: HubMetadata) -> object:
    """The kept connection; None if there is none."""
    return metadata._handler


def test_states(emulator: Emulator, metadata: HubMetadata) -> None:
    fill(emulator)
    assert metadata.partition_ids() == ("0", "1", "2")
    states = metadata.partition_states(["0", "1", "2"])
    assert states["0"] == PartitionState(0, 0, None, None)
    assert (states["1"].begin, states["1"].end) == (0, 5)
    assert (states["2"].begin, states["2"].end) == (3, 5)
    for partition in ("1", "2"):
        there = emulator.partition_state(HUB, partition)
        assert states[partition].last_offset == there.last_offset
        assert states[partition].last_enqueued == there.last_enqueued_time


def test_a_partition_whose_events_are_all_gone_is_empty_where_it_ended(
    emulator: Emulator, metadata: HubMetadata
) -> None:
    emulator.append(HUB, 0, [b"x"] * 5)
    emulator.trim(HUB, 0, 5)
    state = metadata.partition_states(["0"])["0"]
    assert (state.begin, state.end) == (5, 5)
    assert state.last_offset == emulator.partition_state(HUB, 0).last_offset


@pytest.mark.parametrize("begin", [0, 3, 5])
def test_an_empty_partition_is_empty_wherever_the_hub_says_it_begins(
    metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    answer = {
        b"begin_sequence_number": begin,
        b"last_enqueued_sequence_number": 4,
        b"last_enqueued_offset": b"99",
        b"last_enqueued_time_utc": 1_770_000_000_000,
        b"is_partition_empty": True,
    }
    monkeypatch.setattr(metadata, "_request", lambda schedule: [answer])
    state = metadata.partition_states(["0"])["0"]
    assert (state.begin, state.end, state.last_offset) == (5, 5, "99")


def test_only_what_was_asked_for_is_told(metadata: HubMetadata) -> None:
    assert metadata.partition_states(["2"]).keys() == {"2"}
    assert metadata.partition_states([]) == {}


def test_the_public_calls_say_the_same(emulator: Emulator, metadata: HubMetadata) -> None:
    fill(emulator)
    emulator.trim(HUB, 1, 5)
    slow = HubMetadata(hub_options(emulator).connection, "$Default")
    slow._public_only = True
    assert slow.partition_ids() == metadata.partition_ids()
    assert slow.partition_states(["0", "1", "2"]) == metadata.partition_states(["0", "1", "2"])
    assert opened(slow) is None


def test_a_client_of_another_shape_is_asked_by_its_public_calls(
    metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_shape(*_: object) -> None:
        raise AttributeError("no such private part")

    monkeypatch.setattr(HubMetadata, "_open", another_shape)
    assert metadata.partition_ids() == ("0", "1", "2")
    monkeypatch.undo()
    assert metadata.partition_states(["0"])["0"].end == 0
    assert opened(metadata) is None


def test_the_connection_is_kept(metadata: HubMetadata) -> None:
    metadata.partition_ids()
    kept = opened(metadata)
    assert kept is not None
    metadata.partition_states(["0", "1", "2"])
    assert opened(metadata) is kept


def test_a_dropped_connection_is_replaced_without_a_word(emulator: Emulator, metadata: HubMetadata) -> None:
    for count in range(1, 6):
        metadata.partition_ids()
        kept = opened(metadata)
        emulator.drop_connections()
        emulator.append(HUB, 0, [b"x"])
        assert metadata.partition_states(["0"])["0"].end == count
        assert opened(metadata) not in (None, kept)


def test_an_old_connection_is_replaced_before_its_token_ends(
    metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata.partition_ids()
    kept = opened(metadata)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 601)
    metadata.partition_ids()
    assert opened(metadata) not in (None, kept)


def test_answers_are_granted_again_and_again(metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ehbalance.hub.wire.management._CREDIT", 60)
    metadata.partition_ids()
    kept = opened(metadata)
    for _ in range(10):
        metadata.partition_states(["0", "1", "2"] * 10)
    assert opened(metadata) is kept


def test_more_partitions_than_are_asked_about_at_once(emulator: Emulator, metadata: HubMetadata) -> None:
    emulator.add_partitions(HUB, 117)
    for partition in range(120):
        emulator.append(HUB, partition, [b"x"] * partition)
    states = metadata.partition_states(metadata.partition_ids())
    assert {int(partition): state.end for partition, state in states.items()} == {n: n for n in range(120)}


def test_one_refused_question_among_many(metadata: HubMetadata) -> None:
    with pytest.raises(HubUnavailableError, match="event hub 'hub'"):
        metadata.partition_states(["0", "99", "1"])
    assert metadata.partition_states(["0", "1"]).keys() == {"0", "1"}


def test_closing_twice_and_going_on(metadata: HubMetadata) -> None:
    metadata.partition_ids()
    metadata.close()
    metadata.close()
    assert metadata.partition_ids() == ("0", "1", "2")


def test_partitions_that_were_added_are_told(emulator: Emulator, metadata: HubMetadata) -> None:
    metadata.partition_ids()
    emulator.add_partitions(HUB, 1)
    assert metadata.partition_ids() == ("0", "1", "2", "3")


# --- trouble ---------------------------------------------------------------------------------------------------


def refusal(metadata: HubMetadata) -> str:
    with pytest.raises(HubUnavailableError) as caught:
        metadata.partition_ids()
    message = str(caught.value)
    assert "\n" not in message
    metadata.close()
    return message


@pytest.mark.parametrize("public", [False, True])
def test_a_hub_that_cannot_be_reached(public: bool) -> None:
    with Emulator({HUB: 1}) as emulator:
        options = hub_options(emulator)
    metadata = HubMetadata(options.connection, "$Default")
    metadata._public_only = public
    message = refusal(metadata)
    assert f"event hub 'hub' at {options.connection.namespace} did not answer" in message
    assert "asked for its properties over AMQP" in message
    assert "Connection refused" in message


@pytest.mark.parametrize("public", [False, True])
def test_a_hub_that_does_not_exist(emulator: Emulator, public: bool) -> None:
    metadata = HubMetadata(hub_options(emulator).connection, "$Default")
    metadata._public_only = public
    message = refusal(metadata)
    assert "event hub 'hub'" in message
    assert "could not be found" in message


@pytest.mark.parametrize("public", [False, True])
def test_a_wrong_key_is_said_to_be_refused_and_not_shown(public: bool) -> None:
    with Emulator({HUB: 1}, sas_keys={"reader": KEY}) as emulator:
        right = hub_options(emulator).connection
        assert HubMetadata(right, "$Default").partition_ids() == ("0",)
        wrong = hub_options(emulator, connectionString=emulator.connection_string(HUB, key="theWrongKey")).connection
        metadata = HubMetadata(wrong, "$Default")
        metadata._public_only = public
        message = refusal(metadata)
    assert "event hub 'hub'" in message
    assert "refused the credentials" in message
    assert KEY not in message
    assert "theWrongKey" not in message


def test_it_answers_again_after_trouble(emulator: Emulator, metadata: HubMetadata) -> None:
    metadata.partition_ids()
    emulator.refuse_connections()
    emulator.drop_connections()
    refusal(metadata)
    emulator.refuse_connections(False)
    assert metadata.partition_ids() == ("0", "1", "2")
    assert opened(metadata) is not None


def test_a_hub_made_anew_is_seen_over_the_kept_connection(emulator: Emulator, metadata: HubMetadata) -> None:
    fill(emulator)
    assert metadata.partition_states(["1"])["1"].end == 5
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 2)
    assert metadata.partition_ids() == ("0", "1")
    assert metadata.partition_states(["1"])["1"] == PartitionState(0, 0, None, None)
