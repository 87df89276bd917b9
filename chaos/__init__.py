"""What no unit test shows: real queries, killed and paused under load, and the lease store at its limits.

`python -m chaos` is the chaos run; `chaos.handover`, `chaos.soak` and `chaos.contention` measure. Each prints one
table and ends with 1 if a bar was missed.
"""
