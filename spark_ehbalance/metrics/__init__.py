"""Metrics: what is measured, and how Prometheus and OpenTelemetry get it."""
