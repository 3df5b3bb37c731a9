"""What the numbers of errors of MySQL and MariaDB mean for a job. Driver and executors.

A number that is in no list ends a job before it starts or in a task; at commit, where a checkpoint has promised the rows, it is
tried again, because only what the table itself refuses will be refused for ever.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from penstock.lazy_imports import optional_package
from penstock.sinks.sql.server import DriverErrors, Meaning

REFUSED_ROWS = {1048, 1062, 1216, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1452, 1644, 3140, 3819, 4025}  # fmt: skip
"""NULL, duplicate, foreign key, out of range, too long, not a value of the type, a trigger's SIGNAL, JSON, CHECK."""
_REFUSED_LOGIN = {1044, 1045, 1049, 1698}
MAY_NOT_RECOVER = 1401
"""What MySQL says to XA RECOVER of a user without XA_RECOVER_ADMIN."""
_SERVER = {1021, 1024, 1026, 1030, 1037, 1038, 1041, 1053, 1077, 1114, 1135, 1290, 1836, 3168, 3170}
"""Disk, files, memory, threads, shutdown, read-only."""
_CONNECTION = {0, 1040, 1047, 1129, 1158, 1159, 1160, 1161, 1203, 1226, 1317, 1927, 1969, 3024, 4031, *range(2000, 3000)}  # fmt: skip
"""Too many, lost, killed, a node of a cluster that is not ready, a statement that took too long."""
_TRANSACTION = {1020, 1180, 1181, 1205, 1206, 1213, 1399, 1401, 1402, 1613, 1614, 1637, 1792, 3100, 3101}
"""Locks, conflicts, replication, an XA transaction that was rolled back before it was prepared."""
_MAY_PASS = {*_SERVER, *_CONNECTION, *_TRANSACTION}
_CONSTRAINTS = {1022, 1169, 1217, 1365, 1451, 1526, 1557, 1586, 1690, 1748, 1761, 1762, 3156}
"""Duplicates and foreign keys by their other numbers, a value that no partition takes, a CHECK that cannot be computed."""
_SCHEMA = {1051, 1054, 1064, 1072, 1091, 1109, 1118, 1136, 1146, 1305, 1347, 1356, 1442, 1471, 1906, 3105}
"""No such table or column, a row that is too long, a trigger that is broken, a column that the server generates."""
_REFUSED_FOR_EVER = {*REFUSED_ROWS, *_CONSTRAINTS, *_SCHEMA}
"""What repeating a commit cannot change."""
_DENIED = {1044, 1142}


def pymysql_module() -> Any:
    """Import PyMySQL, which only these sinks need."""
    return optional_package("pymysql", needed_by="sinks.MySQL and sinks.MariaDB", extra="mysql")


def code(error: Any) -> int:
    """The number of an error; 0 when the connection was closed on this side."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


class MySQLErrors(DriverErrors):
    """Those of PyMySQL, told apart by number."""

    @override
    def all(self) -> type[Exception]:
        kind: type[Exception] = pymysql_module().Error
        return kind

    @override
    def meaning(self, error: Any) -> Meaning:
        for numbers, found in (
            (_REFUSED_LOGIN, Meaning.NO_LOGIN),
            (REFUSED_ROWS, Meaning.BAD_ROW),
            (_MAY_PASS, Meaning.MAY_PASS),
            (_REFUSED_FOR_EVER, Meaning.REFUSED),
        ):
            if code(error) in numbers:
                return found
        return Meaning.UNKNOWN

    @override
    def code(self, error: Any) -> dict[str, Any]:
        return {"code": code(error)}

    @override
    def said(self, error: Any) -> str:
        text = str(error.args[-1] if error.args else "no answer")
        return " ".join(text.split()) or "the connection is closed"

    @override
    def is_denied(self, error: Any) -> bool:
        return code(error) in _DENIED
