"""A storage account on this machine (Azurite) whose requests can be delayed, counted and disturbed."""
