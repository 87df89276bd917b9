"""A local Azure Event Hubs for development and tests, which the real clients accept."""

from spark_ehbalance.emulator.administration import PartitionState
from spark_ehbalance.emulator.control import EmulatorControl
from spark_ehbalance.emulator.emulator import Emulator
from spark_ehbalance.emulator.event_hub import ArrivedEvent, EventHub
from spark_ehbalance.emulator.settings import Settings

__all__ = ["ArrivedEvent", "Emulator", "EmulatorControl", "EventHub", "PartitionState", "Settings"]
