"""Tests of the connection to Event Hubs: the real client against the emulator."""
