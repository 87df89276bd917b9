"""Tests of what is in jobs."""
