"""Stores for a group's state: `contract` defines the interfaces, and `backends` opens stores."""
