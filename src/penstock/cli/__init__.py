"""The command line `penstock`. In: arguments. Out: text for people (or JSON), and an exit code. Called by the shell.

0: it worked. 1: it did not, or a promise was not kept. 2: a setting or an argument is wrong. 3: a job failed for good. 4: it was fenced.
130: interrupted. See `errors.exit_code_of`.
"""

from penstock.cli.main import main

__all__ = ["main"]
