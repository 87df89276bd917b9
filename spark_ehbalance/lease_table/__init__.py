"""Lease stores keep the state of a group: the interfaces in `base`, `open_store` in `opening`, and the backends."""
