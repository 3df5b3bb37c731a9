"""The Spark side of operators. In: an operator of the graph, and DataFrames. Out: its `Spec`, and the rows of each batch for its tasks.

Operators for which Spark does part of the work have a module each, with the name that it has in `penstock.operators`; `registry.py` finds
the function that compiles an operator, and has those of the other operators.
"""
