"""Plain values that every layer uses: no clock, no I/O, no state."""
