"""A local Azure Event Hubs for development and tests, which the real clients accept."""

from .administration import PartitionState
from .broker import HubSpec
from .control import EmulatorControl
from .emulator import Emulator
from .log_segments import LogCorruptError

__all__ = ["Emulator", "EmulatorControl", "HubSpec", "LogCorruptError", "PartitionState"]
