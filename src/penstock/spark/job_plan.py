"""What a job is, for people who look at it while it runs or long after, see `journal.plan`. Driver."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.guarantee import Guarantee
from penstock.spark.compiled import Compiled
from penstock.spark.inspection import leaves
from penstock.status.plan import Plan
from penstock.status.plan_nodes import plan_nodes, plan_settings
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.job import Job


def plan_of(job: Job, compiled: Compiled, guarantee: Guarantee, *, available_now: bool) -> Plan:
    """The same for all runs of one start."""
    kinds = {
        source.uid: ", ".join(dict.fromkeys(leaf.kind for leaf in leaves(source.frame)))
        for source in job.graph.sources
    }
    return Plan(
        job=job.name,
        nodes=plan_nodes(job.graph, kinds, job.parallelism),
        settings=plan_settings(
            job.checkpoint,
            restart=str(job.restart),
            trigger_s=job.trigger_s,
            backend=job.backend.name,
            parallelism=job.parallelism,
            max_parallelism=job.max_parallelism,
            local_recovery=job.local_recovery,
        ),
        guarantee=guarantee.level.value if guarantee.level else "no guarantee",
        limited_by=guarantee.limited_by or "",
        reason=guarantee.reason,
        program=Path(sys.argv[0]).name if sys.argv else "",
        penstock=__version__,
        spark=compiled.session.version,
        python=platform.python_version(),
        available_now=available_now,
    )
