"""How tests are dealt out to processes: never two Spark sessions at a time, which two cores do not bear."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WITH_SPARK = ("tests/chaos/", "tests/docs/", "tests/spark/")


class TwoHands(LoadScopeScheduling):
    """One process has everything that starts Spark, from the first moment; the others take module after module."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(WITH_SPARK) else nodeid.partition("::")[0]
