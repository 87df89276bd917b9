"""One membership in a group: the turn of a member, its thread, its pacing and its load."""
