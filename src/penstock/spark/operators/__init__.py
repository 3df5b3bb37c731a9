"""Operators as Spark sees them. In: an operator of the graph, and DataFrames. Out: its `Spec`, and the rows of each batch for its tasks.

One module for each kind of operator, with the names that `penstock.operators` has; `registry.py` finds them.
"""
