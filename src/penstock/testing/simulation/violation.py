"""What a simulation raises. Runs wherever tests run."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818 - it is not an error of the program but the finding of the test
    """Something that must always hold did not."""
