"""Rows that wait in files until their checkpoint completes: shared by the sinks that have no better place. Driver and executors."""
