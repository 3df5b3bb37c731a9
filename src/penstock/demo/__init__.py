"""The demonstration: page views by app, counted by a job whose driver is killed and comes back.

In: options of `penstock demo`. Out: a table that compares every count with the truth, and one sentence. The supervisor runs in the
process of the command line; the driver is a child of it (`worker`), so that it can be killed for real.
"""
