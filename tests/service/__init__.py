"""Tests that run against a real event hub (`make test-azure`) or, by default, against the emulator."""
