"""The version of Penstock. Driver and executors."""

__version__ = "0.1.0"
