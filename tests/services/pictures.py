"""Pictures of the pages of a running job, for README and docs.

    make pictures ARGS="http://127.0.0.1:8090 page-views"
    python tests/services/pictures.py ADDRESS JOB [FOLDER]

Each page as the wide and as the narrow reader sees it first: one screen, not the whole page. The overview and the job also in dark.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from services.chromium import launched
from services.watched_page import PAGES, Watched, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
LARGEST_BYTES = 300 * 1024
SIZES = {"": (1600, 1000), "-narrow": (800, 1000)}
_IN_DARK = ("overview", "job")
_SETTLED_MS = 400
"""Fonts, charts and the first word of the stream."""


def take_pictures(browser: Browser, url: str, job: str, folder: Path = FOLDER, only: str = "") -> list[Path]:
    """All of them, or `only` those of one page; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    for scheme, suffix in (("light", ""), ("dark", "-dark")):
        for narrow, (width, height) in SIZES.items():
            with watched(browser, url, width=width, height=height, scheme=scheme) as seen:
                taken += [
                    _picture(seen, path, folder / f"{name}{narrow}{suffix}.png")
                    for name, path in _paths(seen, job).items()
                    if only in ("", name) and (scheme == "light" or (name in _IN_DARK and not narrow))
                ]
    return taken


def _paths(seen: Watched, job: str) -> dict[str, str]:
    """By the name of the picture. The newest checkpoint that was completed is opened, where there is one."""
    named = {"overview": "/", **{page.removeprefix("/") or "job": f"/jobs/{job}{page}" for page in PAGES}}
    seen.goto(f"/jobs/{job}/checkpoints")
    newest = seen.page.locator("tr.completed th a").first
    opened = newest.get_attribute("href") if newest.count() else None
    return {**named, **({"checkpoint": opened} if opened else {})}


def _picture(seen: Watched, path: str, file: Path) -> Path:
    seen.goto(path)
    seen.page.wait_for_timeout(_SETTLED_MS)
    seen.page.screenshot(path=file, animations="disabled")
    if file.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{file.name} has {file.stat().st_size:,} bytes, more than {LARGEST_BYTES:,}")
    return file


if __name__ == "__main__":
    address, name, *where = sys.argv[1:]
    with launched() as chromium:
        for picture in take_pictures(chromium, address, name, Path(where[0]) if where else FOLDER):
            print(picture)
