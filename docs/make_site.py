"""The docs site: lay the pages out for Zensical, and check what it has built. `make docs-site` calls both.

On GitHub the README and its neighbours lie above `docs/`; a site has one folder of pages. So the pages are copied, the README becomes
the first one, each example becomes a page with its code, and links follow. The API reference is generated into `reference/`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import make_reference

ROOT = Path(__file__).parents[1]
PAGES = ROOT / ".site" / "pages"
SITE = ROOT / "site"
NEIGHBOURS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
_LINK = re.compile(r"(\[[^\]]+\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
_FENCED = re.compile(r"(```.*?```)", re.DOTALL)
_FETCHING = {"mermaid", "pyodide"}
"""Classes of blocks for which the theme's script fetches another one."""
_IN_STYLE = re.compile(r"""url\(\s*["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)""")


def lay_out(root: Path, pages: Path) -> None:
    """Copy every page to its place in the site, with links that lead to where the others now are."""
    shutil.rmtree(pages, ignore_errors=True)
    places = _places(root)
    for source, place in places.items():
        target = pages / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".png":
            shutil.copyfile(root / source, target)
            continue
        text = (root / source).read_text(encoding="utf-8")
        if source.suffix == ".py":
            text = f"# {source.name}\n\n```python\n{text}```\n"
        elif source.name == "LICENSE":
            text = f"# Licence\n\n```\n{text}```\n"
        else:
            text = _followed(text, source, places)
        target.write_text(text, encoding="utf-8")
    make_reference.write(root / "src", pages / "reference")


def _places(root: Path) -> dict[Path, Path]:
    """Where each file of the repository is in the site."""
    places = {Path(name): Path(name) for name in NEIGHBOURS} | {Path("LICENSE"): Path("LICENSE.md")}
    places[Path("README.md")] = Path("index.md")
    for page in sorted((root / "docs").rglob("*.md")):
        places[page.relative_to(root)] = page.relative_to(root / "docs")
    for picture in sorted((root / "docs" / "pictures").glob("*.png")):
        places[picture.relative_to(root)] = picture.relative_to(root / "docs")
    for example in sorted((root / "examples").glob("*.py")):
        places[example.relative_to(root)] = Path("examples", f"{example.stem}.md")
    return places


def _followed(text: str, source: Path, places: dict[Path, Path]) -> str:
    """The text with its links to files of the repository turned to their places in the site; code is left as it is."""
    here = places[source].parent

    def turned(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if not target or urlsplit(target).scheme:
            return match.group()
        place = places[
            Path(os.path.normpath(source.parent / target))
        ]  # a link to no page of the site fails, by its name
        return f"{before}{os.path.relpath(place, here)}{after}"

    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(turned, part) for part in parts)


class _Page(HTMLParser):
    """What a page loads, where it links to, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.loads += [f"//{name}" for name in _FETCHING.intersection(found.get("class", "").split())]
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in {"canonical", "prev", "next", "alternate"}:
            self.loads.append(found.get("href", ""))
        elif "src" in found:
            self.loads.append(found["src"])


def complaints(site: Path) -> Iterator[str]:
    """What is wrong with a built site: what it loads from elsewhere, and links that lead nowhere."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        yield from (f"{name} loads {target}" for target in page.loads if _elsewhere(target))
        for target in [*page.loads, *page.links]:
            if (
                not _elsewhere(target)
                and not urlsplit(target).scheme
                and not _leads(path, target, pages, site)
            ):
                yield f"{name} has a link to {target}, which is not there"
    for path in sorted(site.rglob("*.css")):
        for found in _IN_STYLE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} loads {''.join(found)}"


def _elsewhere(target: str) -> bool:
    return target.startswith(("http://", "https://", "//"))


def _leads(page: Path, target: str, pages: dict[Path, _Page], site: Path) -> bool:
    parts = urlsplit(target)
    path = unquote(parts.path)
    found = (
        page
        if not path
        else (site / path.lstrip("/") if path.startswith("/") else (page.parent / path).resolve())
    )
    found = found / "index.html" if found.is_dir() else found
    if page.name == "404.html" or not parts.fragment:  # the 404 page is shown at any address
        return found.is_file() or page.name == "404.html"
    return found in pages and (parts.fragment == "__skip" or unquote(parts.fragment) in pages[found].anchors)


def main(command: str) -> int:
    """`lay-out` before the build, `check` after it."""
    if command == "lay-out":
        lay_out(ROOT, PAGES)
        return 0
    found = list(complaints(SITE))
    print(
        "\n".join(found)
        or f"docs-site: {SITE / 'index.html'}: every link leads somewhere, and nothing is loaded from elsewhere"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
