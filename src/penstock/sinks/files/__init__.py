"""Files in folders: staged beside the target, moved into place. Written in tasks, committed on the driver."""
