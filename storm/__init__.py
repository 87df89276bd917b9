"""The storm: runs groups of queries in simulated time, with faults of every kind that a seed determines. See
`python -m storm`."""
