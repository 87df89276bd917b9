"""A local Azure Event Hubs for development and tests, which the real clients accept."""

from spark_ehbalance.emulator.emulator import Emulator, PartitionState
from spark_ehbalance.emulator.event_hub import ArrivedEvent, EventHub
from spark_ehbalance.emulator.settings import Settings

__all__ = ["ArrivedEvent", "Emulator", "EventHub", "PartitionState", "Settings"]
