"""Benchmarks: `python -m bench [NAME]...` prints each measured number together with its limit."""
