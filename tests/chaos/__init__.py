"""Tests of the stress tests: the accounting, the schedule, the outage, and a short soak."""
