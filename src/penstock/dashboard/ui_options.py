"""What `ui=` of a start, and the options of `penstock dashboard`, mean: where the server listens, and who may do what. Pure.

Refused here is what can be refused before anything starts. Driver, and the dashboard's process.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.errors import ConfigError
from penstock.ids import SYSTEM_RANDOMNESS

TOKEN_VARIABLE = "PENSTOCK_UI_TOKEN"  # noqa: S105 - a name
"""The variable of the environment that a token may be in: arguments of programs can be seen by everybody on a machine."""
USUAL_HOST = "127.0.0.1"
USUAL_PORT = 8090
MORE_PORTS = 20
"""With `ui=True` so many ports are tried, from the usual one on: several jobs may run on one machine."""
LARGEST_PORT = 65535
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 512
"""Characters. A cookie is made of the token: from a short one it could be guessed."""
MADE_TOKEN_DIGITS = 48
_FORMS = "write ui='127.0.0.1:8090', ui=':8090', ui=8090, or ui=True for the first free port from 8090 on"


@dataclass(frozen=True)
class Ui:
    """The pages of a job: `job.start(ui=ps.Ui("127.0.0.1:8090", read_only=True))`.

    `address`: where they are served, as a text or a port; True: the first free port from 8090 on.
    `token`: what a reader needs to open them, also from PENSTOCK_UI_TOKEN; on a loopback address one is made by default, and logged.
    `read_only`: readers can change nothing. `names`: host names by which readers reach the server, besides its address.
    `savepoints`: folders below which readers may make and delete savepoints, besides the one beside the job.
    """

    address: str | int | bool = True
    token: str | None = field(default=None, repr=False)
    read_only: bool = False
    names: Sequence[str] = ()
    savepoints: Sequence[str] = ()


class UiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens and whom it lets in. Its text form does not show the token."""

    host: str = USUAL_HOST
    ports: tuple[int, ...] = (USUAL_PORT,)
    """The first that is free is taken; 0 is any."""
    token: str | None = None
    token_is_made: bool = False
    """Nobody gave a token, so this one was made: whoever starts the server is told it, as part of an address."""
    read_only: bool = False
    names: tuple[str, ...] = ()
    """Names by which people reach the server, besides its address: that of a machine, or of a proxy."""
    savepoints: tuple[str, ...] = ()
    """Folders below which savepoints may be made and deleted from here, besides the one beside each job."""

    @classmethod
    def checked(
        cls,
        ui: object,
        token: str | None = None,
        *,
        read_only: bool = False,
        names: Sequence[str] = (),
        savepoints: Sequence[str] = (),
    ) -> UiOptions:
        """What somebody has given; raises `ConfigError` that says what can be given. `ui` is a text, a port, or `True`.

        Without a token one is made: every user of a machine reaches its loopback address.
        """
        place = _place(ui)
        _check_token(token)
        if token is None and not is_loopback(place.host):
            raise ConfigError(
                f"ui={ui!r} can be reached from other machines, and whoever reaches it can stop the job: it needs a token. Give one of "
                f"{SHORTEST_TOKEN} characters or more (PENSTOCK_UI_TOKEN, a file given to --token-file or --ui-token-file, or ui_token=), "
                "or listen on 127.0.0.1 only",
                ui=ui,
            )
        return cls(
            host=place.host,
            ports=place.ports,
            token=token or SYSTEM_RANDOMNESS.token(MADE_TOKEN_DIGITS),
            token_is_made=token is None,
            read_only=read_only,
            names=_several("names", names),
            savepoints=tuple(map(_whole_path, _several("savepoints", savepoints))),
        )

    def opening_address(self, port: int) -> str:
        """What a person opens: with the token, if it was made here; whoever gave one knows it."""
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
        raise ConfigError(f"ui={ui!r} is no address of this machine: {_FORMS}", ui=ui)
    return bare or USUAL_HOST


def _several(option: str, given: Sequence[str]) -> tuple[str, ...]:
    """A text alone would be taken for its letters."""
    if isinstance(given, str) or not all(isinstance(one, str) and one.strip() for one in given):
        raise ConfigError(f"{option}={given!r} is not allowed: give a list of texts, such as {option}=[...]")
    return tuple(given)


def _whole_path(folder: str) -> str:
    if not folder.startswith("/") or not folder.strip("/"):
        raise ConfigError(
            f"{folder!r} is no folder for savepoints: write a whole path that begins with /, and not / itself",
            folder=folder,
        )
    return folder


def _check_token(token: str | None) -> None:
    """The token itself is in no message."""
    if token is None:
        return
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        raise ConfigError(
            f"the token of the dashboard has {len(token)} characters; it needs {SHORTEST_TOKEN} to {LONGEST_TOKEN}. "
            "`openssl rand -hex 24` makes a good one",
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(
            "the token of the dashboard has characters that cannot be sent in a header of HTTP; use letters and digits, such as "
            "`openssl rand -hex 24` gives",
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name other than `localhost` may lead anywhere."""
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def address_of(host: str, port: int) -> str:
    """As a person opens it: `http://127.0.0.1:8090`."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
