"""Stress tests (`python -m chaos`): they run a fleet of processes, inject faults, and account for all events."""
