"""The pages of the dashboard: what is seen of jobs, as HTML.

Enter: `JobView`s and what is around a page (`PageFrame`). Leaves: text.
Nothing is read here, and nothing is asked of a job: whoever serves the pages does that.
"""

from penstock.dashboard.pages.job_pages import (
    actions,
    batches,
    checkpoint,
    checkpoints,
    failures,
    found,
    job,
    journal,
    login,
    overview,
    problem,
    savepoints,
    state,
)

__all__ = [
    "actions",
    "batches",
    "checkpoint",
    "checkpoints",
    "failures",
    "found",
    "job",
    "journal",
    "login",
    "overview",
    "problem",
    "savepoints",
    "state",
]
