"""The hot loop: transfer frames from the client's socket straight into Arrow columns."""
