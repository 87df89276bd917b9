"""The storm: groups of queries in simulated time, from a seed, with faults of every kind. See `python -m storm`."""
