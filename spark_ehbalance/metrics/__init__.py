"""Metrics for Prometheus: definitions, samples and the server."""
