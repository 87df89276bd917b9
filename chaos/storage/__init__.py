"""A storage account on this machine (Azurite), with requests that can be delayed, counted and disturbed."""
