"""What a job writes down for people: what it is, what it does now, and what happened to it.

Enter: events from the threads of a run, and snapshots of its progress. Leave: `events/`, `runs/<k>.plan` and `runs/<k>.live` in storage,
and calls of listeners. No start reads any of it, and no job fails for want of it. Driver; read by the command line and the dashboard.
"""
