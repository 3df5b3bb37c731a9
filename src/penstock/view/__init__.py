"""All that can be seen of a job from its storage alone: running, dead or finished. Without Spark, and without changing anything.

Enter: a storage, or the folder of a job in it. Leaves: `JobView`, one typed moment, which pages, commands, metrics and REST all show.
"""
