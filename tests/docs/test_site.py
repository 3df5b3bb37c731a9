"""The docs site has every page, and its check finds what it is there to find. `make docs-site` builds it."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import errors

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", name="make_site")
def make_site_module() -> Iterator[Any]:
    """docs/make_site.py, a script beside the pages."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        yield importlib.import_module("make_site")
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_every_page_is_in_the_site(make_site: Any, tmp_path: Path) -> None:
    """Pages and examples are laid out, links between them lead to where they now are, and the menu has no other page."""
    pages = tmp_path / "pages"
    make_site.lay_out(ROOT, pages)
    laid_out = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    written = {name for name in laid_out if not name.startswith("reference/")}
    assert (
        len(written) == len([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]) + 1
    )
    menu = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert menu == {name for name in laid_out if not re.match(r"examples/|LICENSE|decisions/0", name)}
    for page in pages.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\[[^\]]+\]\(([^)#\s]+)", text):
            assert target.startswith("http") or (page.parent / target).is_file(), f"{page.name}: {target}"


def test_the_reference_has_every_public_name(make_site: Any) -> None:
    """Every name of `penstock.__all__`, and of its public modules, has a section in the API reference, and a class has its methods."""
    pages = make_site.make_reference.pages_of(ROOT / "src")
    headings = set(re.findall(r"^#+ `?([\w.]+)`?$", "\n".join(pages.values()), re.MULTILINE))
    modules = {name for name in ps.__all__ if inspect.ismodule(getattr(ps, name))}
    listed = {name: getattr(getattr(ps, name), "__all__", ()) for name in modules}
    expected = {f"ps.{name}" for name in set(ps.__all__) - modules}
    expected |= {f"ps.{module}.{name}" for module, names in listed.items() for name in names}
    assert expected - headings == set()
    named = {name.rpartition(".")[2] for name in headings}
    assert {name for name, one in vars(errors).items() if inspect.isclass(one)} <= named
    assert {"Job.run", "Stream.write_to", "KeyedStream.process", "TwoPhaseCommitSink.commit"} <= headings
    assert "checkpoint: Checkpointing | None = None," in pages["jobs-and-streams.md"]


GOOD = '<h1 id="top"></h1><a href="#top"></a><a href="sub/other.html"></a><a href="https://example.org"></a><img src="a.png">'


@pytest.mark.parametrize(
    ("page", "style", "complaint"),
    [
        (GOOD, "p {}", None),
        (GOOD + '<script src="https://example.org/x.js"></script>', "", "loads https://example.org/x.js"),
        (GOOD + '<link rel="stylesheet" href="//example.org/x.css">', "", "loads //example.org/x.css"),
        (GOOD + '<img src="http://example.org/x.png">', "", "loads http://example.org/x.png"),
        (GOOD + '<pre class="mermaid">', "", "loads //mermaid"),
        (GOOD, "@font-face { src: url(https://example.org/x.woff2) }", "loads https://example.org/x.woff2"),
        (GOOD + '<a href="missing.html"></a>', "", "missing.html, which is not there"),
        (GOOD + '<a href="sub/other.html#missing"></a>', "", "other.html#missing, which is not there"),
        (GOOD + '<script src="missing.js"></script>', "", "missing.js, which is not there"),
    ],
)
def test_what_the_check_finds(
    make_site: Any, tmp_path: Path, page: str, style: str, complaint: str | None
) -> None:
    """What a page loads from elsewhere, and what it refers to in vain, is a complaint; links to elsewhere are not."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "sub" / "other.html").write_text('<a href="../index.html#top"></a>')
    (tmp_path / "style.css").write_text(style)
    (tmp_path / "a.png").touch()
    found = list(make_site.complaints(tmp_path))
    assert len(found) == (complaint is not None)
    assert not complaint or complaint in found[0]
