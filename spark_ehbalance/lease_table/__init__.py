"""Stores of a group's state: interfaces in `contract`, `open_store` in `backends`."""
