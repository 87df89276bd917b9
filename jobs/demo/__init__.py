"""The demo that `make run` starts: two queries share a hub and a table, are killed and stopped: every event once."""
