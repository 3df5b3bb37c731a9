"""Runs programs with a mistake one after the other in one process, so that they share one Java, and shows their end as Python does."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

BEGIN = "=== "


def run(program: Path, folder: Path) -> None:
    """What `python program.py` in this folder shows, after a line with its name."""
    sys.stdout.flush()
    print(f"{BEGIN}{program.stem}", file=sys.stderr, flush=True)
    folder.mkdir()
    os.chdir(folder)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - shown as it would be
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename != str(program):
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run(Path(name), Path(sys.argv[1]) / Path(name).stem)
