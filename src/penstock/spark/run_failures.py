"""What is told of a run that failed: by whoever knows most about it. Driver."""

from __future__ import annotations

import logging

from penstock.engine.run import Run
from penstock.errors import FencedError, PenstockError
from penstock.graph import Graph
from penstock.spark.causes import in_brief
from penstock.spark.source_errors import source_failure

_log = logging.getLogger(__name__)


def explained(error: BaseException, engine: Run, graph: Graph) -> BaseException:
    """A task's own account of its failure says more than Spark's; of a source that fails there is only Spark's, which is long."""
    if isinstance(error, PenstockError):
        return error
    lost = source_failure(error)
    if lost is not None:
        lost.__cause__ = error
        return lost
    told = engine.explained(error)
    if told is not None:
        graph.say_where(told, engine.told.subtask.uid if engine.told else "")
        return told
    return in_brief(error)


def of_the_owner(failure: BaseException, engine: Run, job: str) -> BaseException:
    """A run that was replaced fails in many ways, since its files go away; what matters then is that it was replaced."""
    if isinstance(failure, FencedError):
        return failure
    try:
        engine.check_claim()
    except FencedError as fenced:
        fenced.__cause__ = failure
        return fenced
    except Exception as error:  # noqa: BLE001 - storage is away: nobody knows, and the failure is told
        _log.debug("who owns job %s could not be seen", job, exc_info=error)
    return failure
