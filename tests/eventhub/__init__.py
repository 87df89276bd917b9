"""Tests of the edge to Event Hubs, with the real client against the emulator."""
