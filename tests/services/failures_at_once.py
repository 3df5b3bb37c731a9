"""A failure is told when it happens, not at the end: a run that is cut off has said what it had found."""

from __future__ import annotations

import pytest

LINES = 40
"""Of what a failure says; the whole comes at the end, as always."""


class FailuresAtOnce:
    """Heard by the process that deals out; those that run the tests are silent."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        terminal.write_line("")
        terminal.write_line(f"FAILED after {report.duration:.0f} s, in its {report.when}: {report.nodeid}")
        for line in report.longreprtext.splitlines()[-LINES:]:
            terminal.write_line(f"  {line}")
