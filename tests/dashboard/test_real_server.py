"""The pages through the real server, in a process of its own, over files of a job as a run writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from builders.dashboard_site import StoredJob, served
from services.watched_page import every_page_holds

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from penstock.dashboard.web_server import ServerProcess


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredJob]:
    made = StoredJob(tmp_path_factory.mktemp("storage"))
    for checkpoint in range(5):
        made.complete(checkpoint)
    with made.running():
        yield made


@pytest.fixture(scope="module")
def site(job: StoredJob) -> Iterator[ServerProcess]:
    with served(job) as beside:
        yield beside


def test_every_page_holds_through_the_server(chromium: Browser, site: ServerProcess) -> None:
    """Under the server's own policy: no error, no request elsewhere, nothing overflows, all can be read."""
    every_page_holds(chromium, site.address, "views")
