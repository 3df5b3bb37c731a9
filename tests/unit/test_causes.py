"""What is made of Spark's errors."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors.exceptions.base import PySparkValueError
from pyspark.errors.exceptions.captured import CapturedException

from penstock.errors import ConfigError, UnavailableError, UserCodeError
from penstock.ids import SubtaskId
from penstock.snapshot.mailbox import TaskFailed
from penstock.spark.failure_messages import cause_of, in_brief

STACK = """An error occurred while calling o629.collectToPython.
: org.apache.spark.SparkException: Job aborted: Task 0 in stage 8.0 failed 4 times
\tat org.apache.spark.rdd.RDD.collect(RDD.scala:1122)

Driver stacktrace:
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.EOFException
\t... 21 more
"""
UDF = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "job.py", line 27, in <lambda>
    1 // 0
ZeroDivisionError: integer division or modulo by zero
"""


class Captured(CapturedException):
    """With a SQLSTATE, as those from the JVM have."""

    def __init__(self, state: str | None, text: str = UDF) -> None:
        self._state = state  # nothing else: the rest of it asks a JVM
        self._text = text

    def __str__(self) -> str:
        return self._text

    def getSqlState(self) -> str | None:  # noqa: N802 - PySpark's name
        return self._state

    def getCondition(self) -> str:  # noqa: N802 - PySpark's name
        return "SOME_CONDITION"


AWAY = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "job.py", line 27, in look_up
    psycopg.connect(dsn)
psycopg.OperationalError: connection failed: connection to server at "127.0.0.1", port 1 failed: Connection refused
\tIs the server running on that host and accepting TCP/IP connections?
"""


def test_errors_of_spark_in_brief() -> None:
    """Stacks of Java and Python are left out of the text, and stay in the cause."""
    java, python = Py4JError(STACK), Captured("38000")
    assert str(in_brief(java)) == (
        "An error occurred while calling o629.collectToPython. "
        ": org.apache.spark.SparkException: Job aborted: Task 0 in stage 8.0 failed 4 times"
    )
    assert in_brief(java).__cause__ is java
    assert str(in_brief(python)) == (
        "An exception was thrown from the Python worker: ZeroDivisionError: integer division or modulo by zero (job.py:27)"
    )
    assert in_brief(python).__notes__ == ["  at: job.py:27"]
    assert len(str(in_brief(Py4JError("x" * 99_999)))) < 1_100
    own = ValueError("a\n\tb")
    assert in_brief(own) is own


def test_errors_of_spark_without_values_of_rows() -> None:
    """What the error is called and the line of the user's code are told: not Spark's words, nor in the cause."""
    cast = Captured("22018", "[CAST_INVALID_INPUT] The value 'Ann Lee' cannot be cast. SQLSTATE: 22018")
    for error, said in (
        (cast, "SOME_CONDITION (its text is not shown: it may have values of rows in it)"),
        (
            Captured("38000"),
            "SOME_CONDITION (its text is not shown: it may have values of rows in it) (job.py:27)",
        ),
        (Py4JError("Ann Lee"), "Py4JError (its text is not shown: it may have values of rows in it)"),
    ):
        hidden = in_brief(error, shows_rows=False)
        assert (str(hidden), hidden.__cause__) == (said, None)


PLAN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `usr` cannot be resolved. SQLSTATE: 42703;
'Filter '`>`('usr, 0)
+- LogicalRDD [user#49L], false
"""
UNPICKLED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/python/pyspark/serializers.py", line 173, in _read_with_length
    return self.loads(obj)
  File "/opt/python/pyspark/serializers.py", line 451, in loads
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named 'helpers.dates'
"""


def test_a_plan_is_no_part_of_what_is_wrong() -> None:
    """Spark draws it below its words."""
    assert str(in_brief(Captured("42703", PLAN))).endswith("cannot be resolved. SQLSTATE: 42703")


def test_a_module_that_workers_lack_is_no_fault_of_a_function() -> None:
    """The job's code could not be taken apart: it says which module, and what to do. In a function it is the function's error."""
    refused = in_brief(Captured("38000", UNPICKLED))
    assert isinstance(refused, ConfigError)
    assert "cannot import the module 'helpers.dates'" in str(refused)
    assert "addPyFile" in str(refused)
    in_function = UDF.replace("ZeroDivisionError: integer", "ModuleNotFoundError: No module named 'x'")
    assert isinstance(in_brief(Captured("38000", in_function)), UserCodeError)


def test_code_of_the_user_on_the_driver() -> None:
    """A transform that raises in a batch is the user's code; its line is said."""

    def transform() -> None:
        raise KeyError("n")

    with pytest.raises(KeyError) as raised:
        transform()
    brief = in_brief(raised.value)
    assert isinstance(brief, UserCodeError)
    assert brief.facts["file"] == __file__
    assert brief.__notes__[0].endswith(', in transform: raise KeyError("n")')
    assert brief.__cause__ is raised.value


def told(**more: Any) -> TaskFailed:
    what: dict[str, Any] = {"error": "", "place": "E at job.py:3", **more}
    return TaskFailed(1, 7, SubtaskId("counts", 1), cause="x", **what)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "said", "cause"),
    [
        (Captured("38000"), told(), "counts: E at job.py:3"),
        (Captured("38000"), told(may_pass=True), ""),
        (Captured("38000"), told(error="UnavailableError"), ""),
        (Captured("38000"), None, "SOME_CONDITION (38000)"),
        (Captured("22012"), None, "SOME_CONDITION (22012)"),
        (Captured("38000", AWAY), None, ""),
        (Captured("42703"), None, "SOME_CONDITION (42703)"),
        (Captured("42P01"), None, ""),
        (Captured("42K03"), None, ""),
        (Captured("KD001"), None, ""),
        (Captured(None), None, ""),
        (Py4JError(STACK), None, ""),
        (Py4JNetworkError("no answer"), None, ""),
        (UnavailableError("storage is away"), None, ""),
        (ConnectionError("no"), None, ""),
        (KeyError("n"), None, "KeyError"),
        (PySparkValueError("wrong argument"), None, "PySparkValueError"),
    ],
)
def test_what_is_recognised(error: BaseException, said: TaskFailed | None, cause: str) -> None:
    """Mistakes in code, data and queries have a cause that is the same the next time; what may pass has none."""
    assert cause_of(error, said) == cause
