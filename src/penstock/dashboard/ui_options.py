"""The options of `ui=` and of `penstock dashboard`: where the server listens, and who may do what.

They are checked before anything starts. Driver, and the dashboard's process.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.child_process import TOKEN_VARIABLE
from penstock.errors import ConfigError
from penstock.ids import SYSTEM_RANDOMNESS

USUAL_HOST = "127.0.0.1"
USUAL_PORT = 8090
MORE_PORTS = 20
"""The ports that `ui=True` tries, from the usual one on: several jobs may run on one machine."""
LARGEST_PORT = 65535
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 512
"""In characters. Cookies are derived from the token: a short token could be guessed from one."""
MADE_TOKEN_DIGITS = 48
_FORMS = "write ui='127.0.0.1:8090', ui=':8090', ui=8090, or ui=True for the first free port from 8090 on"


@dataclass(frozen=True)
class Ui:
    """The pages of a job: `job.start(ui=ps.Ui("127.0.0.1:8090", read_only=True))`.

    `address`: the address of the pages, as a string or a port; True: the first free port from 8090 on.
    `token`: the token that readers need, also from PENSTOCK_UI_TOKEN; on a loopback address, one is generated and logged by default.
    `read_only`: readers can change nothing. `names`: host names of the server, besides its address.
    `savepoints`: folders below which readers may make and delete savepoints, besides the folder of the job's own savepoints.
    """

    address: str | int | bool = True
    token: str | None = field(default=None, repr=False)
    read_only: bool = False
    names: Sequence[str] = ()
    savepoints: Sequence[str] = ()

    def __post_init__(self) -> None:
        _place(self.address)
        _check_token(self.token)
        _check_strings("names", self.names)
        _check_strings("savepoints", self.savepoints)
        for folder in self.savepoints:
            _check_whole_path(folder)


class UiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens and who has access. Its `repr` does not show the token."""

    host: str = USUAL_HOST
    ports: tuple[int, ...] = (USUAL_PORT,)
    """The server uses the first free one; 0 is any port."""
    token: str | None = None
    token_is_made: bool = False
    """The token was generated, so the printed address contains it."""
    read_only: bool = False
    names: tuple[str, ...] = ()
    """Host names of the server, besides its address: that of a machine, or of a proxy."""
    savepoints: tuple[str, ...] = ()
    """Folders below which savepoints may be made and deleted, besides the folder of each job's own savepoints."""

    @classmethod
    def of(cls, ui: Ui, option: str = "Ui(..., token=...)") -> UiOptions:
        """Raises `ConfigError` if other machines reach the server and there is no token; `option`: where the user can give one.

        On a loopback address, a token is generated: every user of a machine can reach it.
        """
        if ui.token is None:
            ui = replace(ui, token=os.environ.get(TOKEN_VARIABLE) or None)
        place = _place(ui.address)
        if ui.token is None and not is_loopback(place.host):
            raise ConfigError(
                f"ui={ui.address!r} can be reached from other machines, and its pages can stop the job: it needs a token. Give one of "
                f"{SHORTEST_TOKEN} characters or more with {option} or in {TOKEN_VARIABLE}, or listen on 127.0.0.1 only",
                ui=ui.address,
            )
        return cls(
            host=place.host,
            ports=place.ports,
            token=ui.token or SYSTEM_RANDOMNESS.token(MADE_TOKEN_DIGITS),
            token_is_made=ui.token is None,
            read_only=ui.read_only,
            names=tuple(ui.names),
            savepoints=tuple(ui.savepoints),
        )

    def opening_address(self, port: int) -> str:
        """The address to open, with the token if it was generated."""
        address = address_of(self.host, port)
        return f"{address}/login?token={self.token}" if self.token_is_made else address

    def __repr__(self) -> str:
        token = "none" if self.token is None else "(not shown)"
        return f"UiOptions(host={self.host!r}, ports={self.ports}, token={token}, read_only={self.read_only})"

    __str__ = __repr__


@dataclass(frozen=True)
class _Place:
    host: str
    ports: tuple[int, ...]


def _place(ui: object) -> _Place:
    if ui is True:
        return _Place(USUAL_HOST, (*range(USUAL_PORT, USUAL_PORT + MORE_PORTS), 0))
    if isinstance(ui, int) and not isinstance(ui, bool):
        return _Place(USUAL_HOST, (_port(ui, str(ui)),))
    if not isinstance(ui, str) or not ui.strip():
        raise ConfigError(f"ui={ui!r} is not allowed: {_FORMS}", ui=ui)
    host, _, port = ui.strip().rpartition(":")
    return _Place(_host(host, ui), (_port(ui, port),))


def _port(ui: object, text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > LARGEST_PORT:
        raise ConfigError(f"ui={ui!r} has no port from 0 to {LARGEST_PORT}: {_FORMS}", ui=ui)
    return int(text)


def _host(text: str, ui: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in bare and (bare == text or not _is_address(bare)):
        raise ConfigError(f"ui={ui!r} is not allowed: write an IPv6 address as '[::1]:8090'", ui=ui)
    if any(character.isspace() or character in "/@?#" for character in bare):
        raise ConfigError(f"ui={ui!r} is not an address of this machine: {_FORMS}", ui=ui)
    return bare or USUAL_HOST


def _check_strings(option: str, given: Sequence[str]) -> None:
    """Check a list of strings: a single string would be taken for its letters."""
    if isinstance(given, str) or not all(isinstance(one, str) and one.strip() for one in given):
        raise ConfigError(
            f"{option}={given!r} is not allowed: give a list of strings, such as {option}=[...]"
        )


def _check_whole_path(folder: str) -> None:
    if not folder.startswith("/") or not folder.strip("/"):
        raise ConfigError(
            f"{folder!r} is not a folder for savepoints: write an absolute path, and not / itself",
            folder=folder,
        )


def _check_token(token: str | None) -> None:
    """Check the token, without showing it in a message."""
    if token is None:
        return
    if not isinstance(token, str):
        raise ConfigError(f"the token of the dashboard is of type {type(token).__name__}: give a string")
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        raise ConfigError(
            f"the token of the dashboard has {len(token)} characters; it needs {SHORTEST_TOKEN} to {LONGEST_TOKEN}. "
            "`openssl rand -hex 24` makes a good one",
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(
            "the token of the dashboard has characters that an HTTP header cannot contain; use letters and digits, for example from "
            "`openssl rand -hex 24`",
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host. A name other than `localhost` may lead anywhere."""
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def address_of(host: str, port: int) -> str:
    """The URL of a server, such as `http://127.0.0.1:8090`."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
