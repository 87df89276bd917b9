"""A local Azure Event Hubs for development and tests, which the real clients accept."""

from .administration import PartitionState
from .control import EmulatorControl
from .emulator import Emulator
from .event_hub import ArrivedEvent, EventHub
from .settings import Settings

__all__ = ["ArrivedEvent", "Emulator", "EmulatorControl", "EventHub", "PartitionState", "Settings"]
