"""Savepoints that earlier versions have made are read for ever: `tests/golden/savepoint-<format>` has one of each format.

One was made when its format was new, by `python tests/contract/test_golden_savepoints.py FOLDER`, and is never made again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_savepoints import LAYOUT, Site, schema_of

from penstock.savepoint.create import create_savepoint
from penstock.savepoint.manifest import FORMAT, read_manifest
from penstock.storage import LocalStorage

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = sorted(GOLDEN.glob("savepoint-*"))


def rows(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Rows as texts, in an order of their own."""
    return {name: sorted(map(repr, found)) for name, found in tables.items()}


def loaded(site: Site, backend: str, parallelism: int) -> dict[str, list[str]]:
    """What a job has that begins with it."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LAYOUT.by_name}
    handles = site.loaded(read_manifest(LocalStorage(site.root / "saved")), backend, parallelism)
    for _, name, table in site.content(handles):
        found[name] += table.drop_columns(["__subtask", "__sort_key"] if "rules" in name else []).to_pylist()
    return rows(found)


@pytest.mark.parametrize("backend", ["filesystem", "memory", "rocksdb"])
@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_a_savepoint_of_an_earlier_version(tmp_path: Path, folder: Path, backend: str) -> None:
    """Every row of every table is there, in a job with any parallelism."""
    (tmp_path / "saved").symlink_to(folder / "saved")
    assert loaded(Site(tmp_path), backend, 2) == json.loads((folder / "expected.json").read_text())
    manifest = read_manifest(LocalStorage(folder / "saved"))
    assert (manifest.checkpoint, manifest.barrier.positions) == (5, {"clicks": 3})


def test_there_is_one_of_the_present_format() -> None:
    """Who changes the format adds one, and keeps those that there are."""
    assert f"savepoint-{FORMAT}" in [folder.name for folder in FORMATS]


def make(folder: Path, scratch: Path) -> None:
    """One of the present format."""
    site = Site(scratch)
    completed = site.checkpoint("filesystem", 2, list(range(12)))
    create_savepoint(site.storage, completed, LocalStorage(scratch / "saved"), token="golden")
    folder.mkdir(parents=True)
    (folder / "expected.json").write_text(json.dumps(loaded(site, "filesystem", 2), indent=1) + "\n")
    (scratch / "saved").rename(folder / "saved")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        make(Path(sys.argv[1]), Path(scratch))
    print(pa.__version__, schema_of(LAYOUT.by_name["shops"]))
