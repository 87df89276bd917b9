"""A local emulator of Azure Event Hubs for development and tests, to which the real clients can connect."""

from spark_ehbalance.emulator.emulator import Emulator, PartitionState
from spark_ehbalance.emulator.event_hub import ArrivedEvent, EventHub
from spark_ehbalance.emulator.settings import Settings

__all__ = ["ArrivedEvent", "Emulator", "EventHub", "PartitionState", "Settings"]
