"""Defaults that several layers need, in seconds. `query/options.py` declares the options that have them."""

from __future__ import annotations

#: The shortest of the Azure SDKs' intervals (Go, JavaScript).
BALANCE_INTERVAL = 10.0

#: That of EventProcessorHost: three balance intervals, and three renewals fit into it.
LEASE_DURATION = 30.0

#: The shortest of the Azure SDKs' (Go, JavaScript, Rust), with which all of them renew in time.
PROCESSOR_LEASE_DURATION = 60.0

#: One lease duration: waiting longer would be slower than a crash.
HANDOVER_TIMEOUT = LEASE_DURATION
