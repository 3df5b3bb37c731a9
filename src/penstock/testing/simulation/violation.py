"""What a simulation raises. Runs wherever tests run."""

from __future__ import annotations


class Violation(BaseException):
    """Something that must always hold did not. Not an `Exception`, so that nothing under test retries it away."""
