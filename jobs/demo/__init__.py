"""The demo that `make run` starts: two queries share a hub, one of them is stopped, and no event is missing."""
