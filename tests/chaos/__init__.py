"""Tests of the stress tests: the accounting, the schedule, the outage, and the checks of the jobs."""
