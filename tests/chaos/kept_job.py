"""The chaos job as a file for `penstock run`: the place of everything is in the environment."""

from __future__ import annotations

import os
from pathlib import Path

from chaos_job import build_job
from known_truth import Site

ROOT = "PENSTOCK_KEPT_JOB"


def job(spark):
    """The job of the site."""
    return build_job(Site(Path(os.environ[ROOT])), spark)
