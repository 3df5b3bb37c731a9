"""A page in a real browser that is watched all the time: what goes wrong in it, and whom it asks.

`every_page_holds` is for any server with a job: one that was made up, or the real one beside a running job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from services.patience import tries

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 120_000
"""Only against hanging."""
WIDTHS = (1600, 800)
PAGES = ("", "/batches", "/checkpoints", "/failures", "/state", "/savepoints", "/journal", "/actions")

_OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
_TOO_FAINT = """() => {
  const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const over = (top, below) => { const a = top.length > 3 ? top[3] : 1; return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)); };
  const known = new Map([[null, [255, 255, 255]]]);
  const behind = (element) => {
    if (!known.has(element)) known.set(element, over(parse(getComputedStyle(element).backgroundColor), behind(element.parentElement)));
    return known.get(element);
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("svg, [hidden], dialog:not([open]), :disabled, .skip") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const [a, b] = [light(over(parse(style.color), back)), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${style.color} on ${back.map(Math.round)}: ${node.data.trim().slice(0, 40)}`);
  }
  return [...new Set(faint)];
}"""


class Watched:
    """What happened on a page besides what was asked of it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        self.elsewhere: list[str] = []
        self.expected = re.compile(r"(?!)")
        """Errors that a test brings about itself."""
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self._heard(said.type, said.text))
        page.on("pageerror", lambda error: self._heard("error", str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def goto(self, path: str) -> None:
        """Open a page of the server, and wait until it is live or has said that it is not."""
        self.page.goto(self.url + path)
        self.loaded()

    def loaded(self) -> None:
        """Wait until the scripts of the page have run."""
        self.until("document.readyState === 'complete'")

    def until(self, expression: str) -> None:
        """Wait until it is true. Playwright's own waiting evaluates text inside the page, which the policy forbids."""
        for _ in tries(0.02):
            if self.page.evaluate(expression):
                return
        raise TimeoutError(expression)

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not self.expected.search(text):
            self.wrong.append(f"{urlsplit(self.page.url).path}: {text}")

    def _asked(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc and not url.startswith("data:"):
            self.elsewhere.append(url)

    def check(self) -> None:
        """Nothing went wrong, and nobody else was asked."""
        assert self.wrong == [], self.wrong
        assert self.elsewhere == [], self.elsewhere


@contextmanager
def watched(
    browser: Browser, url: str, *, width: int = 1600, height: int = 1000, scheme: str = "light"
) -> Iterator[Watched]:
    """A page in a fresh browser session; at the end all must have gone well."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    try:
        seen = Watched(context.new_page(), url)
        yield seen
        seen.check()
    finally:
        context.close()


def every_page_holds(browser: Browser, url: str, job: str, *, token: str | None = None) -> None:
    """All pages of a job and the overview, light and dark, wide and narrow.

    Nothing overflows, nothing is too faint to read, there is no error, and no request to another host. `token`: to log in with first.
    """
    for width in WIDTHS:
        with watched(browser, url, width=width) as seen:
            if token is not None:
                log_in(seen, token)
            for path in ("/", *(f"/jobs/{job}{page}" for page in PAGES)):
                seen.goto(path)
                page_holds(seen, f"{path} light {width}")
                seen.page.emulate_media(color_scheme="dark")
                page_holds(seen, f"{path} dark {width}")
                seen.page.emulate_media(color_scheme="light")


def page_holds(seen: Watched, what: str) -> None:
    """One page as it is shown now."""
    assert seen.page.locator("h1").count() == 1, what
    assert seen.page.evaluate(_OVERFLOW) <= 0, f"{what} overflows"
    assert seen.page.evaluate(_TOO_FAINT) == [], what


def log_in(seen: Watched, token: str) -> None:
    """Give the token in the form."""
    seen.goto("/login")
    seen.page.fill("#token", token)
    seen.page.press("#token", "Enter")
    seen.page.wait_for_url(lambda url: "/login" not in url)
