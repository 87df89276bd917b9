"""Defaults that several layers need, in seconds. `query/options.py` declares the options with these defaults."""

from __future__ import annotations

#: The shortest of the Azure SDKs' intervals (Go, JavaScript).
BALANCE_INTERVAL = 10.0

#: As in EventProcessorHost. It equals three balance intervals, and allows three renewals.
LEASE_DURATION = 30.0

#: The shortest of the Azure SDKs' lease durations (Go, JavaScript, Rust); the processors of all SDKs renew within it.
PROCESSOR_LEASE_DURATION = 60.0

#: One lease duration, because a handover should not take longer than recovery from a crash.
HANDOVER_TIMEOUT = LEASE_DURATION
