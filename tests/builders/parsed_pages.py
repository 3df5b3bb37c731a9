"""Pages of the dashboard as a parser of HTML sees them."""

from __future__ import annotations

from html.parser import HTMLParser

from builders.job_views import (
    HOSTILE,
)
from penstock.dashboard.pages.render import PageFrame

FRAME = PageFrame(path="/here", twin="/here.json", logged_in=True, problems=(HOSTILE,))


class Parsed(HTMLParser):
    """A page as a browser takes it apart."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def addresses(self) -> list[str]:
        names = (
            "href",
            "src",
            "action",
            "hx-get",
            "data-stream",
            "data-largest",
            "formaction",
            "poster",
            "xlink:href",
        )
        return [attributes[name] for _, attributes in self.elements for name in names if name in attributes]
