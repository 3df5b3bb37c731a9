"""Whether a server has refused who asks, by what its usual clients raise: a wrong setting, and not an outage. Driver and executors.

Clients of databases call a refused login an operational error, like a server that does not answer. The servers say which it is.
"""

from __future__ import annotations

import re
from typing import Any

from penstock.errors import PenstockError

_OF_MYSQL = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb"})
_NUMBERS = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1370, 1698, 1862, 3118})
"""Of MySQL and MariaDB: user, password, database, host, rights, a way to log in, an account that is expired or locked."""
_STATES = ("28", "3D", "42501")
"""SQLSTATE: authorization, no such database, no right."""
_KINDS = frozenset({"AuthenticationError", "AuthorizationError", "NoPermissionError", "AuthenticationFailed"})
_WORDS = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|(?:role|database) \"[^\"]*\" does not exist"
    r"|Access denied for user|Unknown database '"
)
"""What PostgreSQL and MySQL say while a connection is made, where psycopg has no state yet, or of which only the text is left."""


def refuses_login(error: BaseException) -> bool:
    """Whether user, password, database or rights are refused; of Penstock's errors the fact `denied` says it."""
    if isinstance(error, PenstockError):
        return bool(error.facts.get("denied"))
    kinds = type(error).__mro__
    if any(kind.__name__ in _KINDS for kind in kinds):
        return True
    if any(kind.__module__.partition(".")[0] in _OF_MYSQL for kind in kinds):
        return _number(error) in _NUMBERS
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return str(state).startswith(_STATES) if state else _is_of_a_database(kinds) and says_so(str(error))


def says_so(text: str) -> bool:
    """The same of an error of which only the text is known."""
    return _WORDS.search(text) is not None


def _number(error: BaseException) -> Any:
    return getattr(error, "errno", None) or next(iter(error.args), None)


def _is_of_a_database(kinds: tuple[type, ...]) -> bool:
    """PEP 249 names the class."""
    return any(kind.__name__ == "OperationalError" for kind in kinds)
