"""What people see of a job: the run reports it, storage keeps it, and every page, command, metric and REST answer is made of it.

A run reports through `JobReporter`: events go to the journal and to listeners, the plan and the live status to `runs/`. `JobWatcher` reads
a job's storage and returns one `JobView`. `sentences` and `health` put it into words. No job depends on any of this: a status that cannot
be written or read never fails a run.
"""
