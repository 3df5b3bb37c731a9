"""A Chromium of the machine's, through Playwright: for tests of pages, and for pictures of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from services import summary

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_COMMANDS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


class NoChromiumError(Exception):
    """There is none, or it does not start."""


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser without a window. While it is open no other event loop can run in this thread."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as missing:
        raise NoChromiumError(f"the package playwright cannot be imported: {missing}") from missing
    with sync_playwright() as playwright:
        command = _command(playwright.chromium.executable_path)
        try:
            browser = playwright.chromium.launch(executable_path=command, args=["--no-sandbox"])
        except Error as error:
            raise NoChromiumError(f"{command} does not start: {error}") from error
        summary.started("Chromium", browser.version)
        yield browser
        browser.close()


def _command(brought_along: str) -> str:
    named = os.environ.get("PENSTOCK_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, _COMMANDS)), None)
    if found is None and Path(brought_along).exists():
        found = brought_along
    if found is None:
        raise NoChromiumError(
            "no chromium on this machine; install Debian's chromium, or name one in PENSTOCK_CHROMIUM"
        )
    return found
