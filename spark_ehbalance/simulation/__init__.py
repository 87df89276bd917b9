"""A group in simulated time: the real turns, strategies and lease code on a simulated store, hub and queries."""
