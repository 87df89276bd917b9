"""Stress tests, `python -m chaos`: a fleet of processes, faults, and an account of all events."""
