"""Sinks that call a function of the user: in the task, or on the driver when the checkpoint is complete."""
