"""Leases: the owner of each partition of a group, and the rules for changing it."""
