"""The pages of the dashboard as HTML.

In: `JobView`s and a `PageFrame`. Out: text. The functions read nothing and send no requests to jobs: the routes do that.
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
