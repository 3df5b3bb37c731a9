"""Who owns a job: every attempt to run it takes the next run number, and the highest owns it.

In: storage. Out: a claim, which is checked before anything is completed, committed or deleted; records of where runs went on from, of
which run is alive, and of how runs ended. Called by checkpoint and recovery, on the driver.
"""
