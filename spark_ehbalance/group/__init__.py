"""Leases: who owns which partition of a group, and how that may change."""
