"""An answer that is an error. The dashboard's process."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 - it is an answer, not a failure of ours
    """What was asked for is not done, and why; `status` is that of HTTP.

    404: there is no such thing. 409: the job is not running. 500: it was tried, and came to nothing.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
