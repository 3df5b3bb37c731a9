"""Which plans shuffle by a number of Spark's choice."""

from __future__ import annotations

import pytest

from penstock.spark.compiled import shuffles

NARROW = """\
Filter (n#1 > 1)
+- Project [app#0, explode(x#3) AS y#4]
   +- Union false, false
      :- Filter (<penstock:a> = <penstock:a>)
      :  +- LogicalRDD [app#0, n#1], false
      +- LocalRelation <empty>, [app#0, n#1]
"""


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (NARROW, False),
        ("Repartition 3, true\n+- LogicalRDD [a#1], false\n", False),
        ("RepartitionByExpression [a#1], 3\n+- LogicalRDD [a#1], false\n", False),
        ("RepartitionByExpression [a#1]\n+- LogicalRDD [a#1], false\n", True),
        ("Sort [a#1 ASC NULLS FIRST], false\n+- LogicalRDD [a#1], false\n", False),
        ("Sort [a#1 ASC NULLS FIRST], true\n+- LogicalRDD [a#1], false\n", True),
        ("Join Inner, (a#1 = b#2)\n:- LogicalRDD [a#1], false\n+- LogicalRDD [b#2], false\n", True),
        ("Project [a#1]\n+- Aggregate [a#1], [a#1]\n   +- LogicalRDD [a#1], false\n", True),
        ("Filter a#1 IN (list#7 [])\n:  +- LogicalRDD [b#2], false\n+- LogicalRDD [a#1], false\n", True),
        ("SomethingNew [a#1]\n+- LogicalRDD [a#1], false\n", True),
    ],
)
def test_plans_that_shuffle(plan: str, expected: bool) -> None:
    """Joins, aggregates, global orders and anything unknown do; what has its own number or moves no row does not."""
    assert shuffles(plan) is expected
