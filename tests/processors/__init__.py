"""Queries in one group with unmodified event processors of the Azure SDKs, by way of the `blob` store."""
