"""What is told of a run that failed: by whoever knows most about it. Driver."""

from __future__ import annotations

import logging

from penstock.engine.run import Run
from penstock.errors import FencedError, PenstockError
from penstock.graph import Graph
from penstock.ownership.claim import StorageAwayError
from penstock.spark.causes import in_brief
from penstock.spark.source_errors import source_failure

_log = logging.getLogger(__name__)


def explained(error: BaseException, engine: Run, graph: Graph, *, shows_rows: bool) -> BaseException:
    """A task's own account of its failure says more than Spark's; of a source that fails there is only Spark's, which is long.

    `shows_rows`: whether Spark's own words, which may have values of rows in them, are told.
    """
    if isinstance(error, PenstockError):
        return error
    lost = source_failure(error)
    if lost is not None:
        lost.__cause__ = error if shows_rows else None
        return lost
    told = engine.explained(error)
    if told is not None:
        graph.say_where(told, engine.told.subtask.uid if engine.told else "")
        return told
    return in_brief(error, shows_rows=shows_rows)


def of_the_owner(failure: BaseException, engine: Run, job: str) -> BaseException:
    """A run that was replaced, or whose storage went away, fails in many ways, since its files are gone; what matters is why they are."""
    if isinstance(failure, FencedError | StorageAwayError):
        return failure
    try:
        engine.check_claim()
    except (FencedError, StorageAwayError) as error:
        error.__cause__ = failure
        return error
    except Exception as error:  # noqa: BLE001 - storage is away: nobody knows, and the failure is told
        _log.debug("who owns job %s could not be seen", job, exc_info=error)
    return failure
