"""Settings and parsers for every layer: no clock, no state."""
