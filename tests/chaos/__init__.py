"""Tests of what measures: the accounting, the schedule, the outage, and a short soak."""
