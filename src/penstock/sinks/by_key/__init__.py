"""Sinks that write by key, so that the same rows twice are no harm. In tasks, or on the driver with the checkpoint."""
