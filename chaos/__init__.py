"""Stress tests: real queries that are killed and paused under load, and the lease store at its limits.

`python -m chaos` is the chaos run; `chaos.handover`, `chaos.soak`, `chaos.contention` and `chaos.workers` measure, and
`chaos.jobs` runs the jobs for spark-submit. Each prints its results and exits with 1 if a bar was missed.
"""
