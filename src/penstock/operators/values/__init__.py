"""Values between Arrow and Python. In: columns of rows and of state. Out: the Python objects that user code sees, and back.

Rows are converted only when user code looks at them. What user code returns must fit the declared type unchanged, or is refused.
"""
