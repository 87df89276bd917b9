"""Queries share a group with the Azure SDKs' unmodified event processors through the `blob` store."""
