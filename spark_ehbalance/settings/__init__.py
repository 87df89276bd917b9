"""Option declarations, parsers and secrets, for all layers. No clock, no state."""
