"""One membership in a group: the member's turns, its state, its pacing and its load."""
