"""The command line `penstock`. In: arguments. Out: text for people (or JSON), and an exit code. Called by the shell.

Exit codes: 0 success, 1 failure or a broken promise, 2 a wrong setting or argument, 3 a job that failed for good, 4 a fenced job,
130 interrupted. See `errors.exit_code_of`.
"""

from penstock.cli.main import main

__all__ = ["main"]
