"""Where the state of a group is kept: the interface, and one module for each backend."""
