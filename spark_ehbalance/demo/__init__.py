"""The demo: two queries share a hub and a table; one is killed, one is stopped; every event is there once."""
