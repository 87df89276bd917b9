"""pytest fixtures that provide event hubs in the emulator (docs/emulator.md). Installing this package registers them.

The first fixture that needs the emulator imports it, so that other tests do not pay for the import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spark_ehbalance.emulator import Emulator, EventHub

__all__ = [
    "event_hub",
    "event_hub_connection_string",
    "event_hub_emulator",
    "event_hub_emulators",
    "event_hub_settings",
    "make_event_hub",
]


@pytest.fixture(scope="session")
def event_hub_emulators() -> Iterator[Callable[..., Emulator]]:
    """`event_hub_emulators(**settings)` returns an emulator with these settings, which runs until the session ends."""
    running: list[tuple[Mapping[str, Any], Emulator]] = []

    def emulator(**settings: Any) -> Emulator:
        for other_settings, started in running:
            if other_settings == settings:
                return started
        running.append((settings, _start(settings)))
        return running[-1][1]

    yield emulator
    for _, started in running:
        started.stop()


def _start(settings: Mapping[str, Any]) -> Emulator:
    from spark_ehbalance.emulator import Emulator

    emulator = Emulator(**settings)
    try:
        emulator.start()
    except ImportError as error:
        pytest.fail(f"event_hub_settings: {error}: pip install 'spark-ehbalance[emulator]'", pytrace=False)
    return emulator


@pytest.fixture
def event_hub_settings() -> Mapping[str, Any]:
    """Fields of `spark_ehbalance.emulator.Settings`, such as `{"tls": True}`. Override this fixture in a conftest,
    module or class, or with `pytest.mark.parametrize`."""
    return {}


@pytest.fixture
def event_hub_emulator(
    event_hub_emulators: Callable[..., Emulator], event_hub_settings: Mapping[str, Any]
) -> Iterator[Emulator]:
    """The running emulator with the test's settings, shared with other tests. Injected faults are cleared after the
    test."""
    emulator = event_hub_emulators(**event_hub_settings)
    yield emulator
    emulator.clear_faults()


@pytest.fixture
def make_event_hub(event_hub_emulator: Emulator) -> Iterator[Callable[..., EventHub]]:
    """`make_event_hub(name="", partitions=4, consumer_groups=())` creates a hub, by default with a unique name, and
    deletes it after the test. Raises ValueError if the name is in use."""
    import secrets

    from spark_ehbalance.emulator import EventHub

    emulator, created = event_hub_emulator, list[str]()

    def make(name: str = "", partitions: int = 4, consumer_groups: Iterable[str] = ()) -> EventHub:
        if isinstance(consumer_groups, str):
            raise TypeError(f"consumer_groups={consumer_groups!r}: expected a list of names")
        name = name or f"hub-{secrets.token_hex(6)}"
        if name.lower() in map(str.lower, emulator.hubs()):
            raise ValueError(f"event hub {name!r} already exists")
        emulator.add_hub(name, partitions)
        created.append(name)
        for group in consumer_groups:
            emulator.add_consumer_group(name, group)
        return EventHub(emulator, name)

    yield make
    for name in {*created} & {*emulator.hubs()}:
        emulator.delete_hub(name)


@pytest.fixture
def event_hub(make_event_hub: Callable[..., EventHub]) -> EventHub:
    """An empty hub with 4 partitions for this test."""
    return make_event_hub()


@pytest.fixture
def event_hub_connection_string(event_hub: EventHub) -> str:
    """The connection string of `event_hub`."""
    return event_hub.connection_string
