"""The process that serves the pages of one job beside its driver, see `beside`."""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading

import msgspec

from penstock.dashboard.beside import Said, Wish
from penstock.dashboard.serving import make_server, port_of
from penstock.dashboard.ui_options import address_of

LOOK_S = 1.0
_WISHES = msgspec.json.Decoder(Wish)


def main() -> None:
    """Read the wish, serve, end with the driver."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    wish = _WISHES.decode(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_driver, args=(wish.parent,), daemon=True).start()
    try:
        listening = socket.socket(fileno=wish.socket)
        port = port_of(listening)
        server = make_server(wish.places, wish.options, port, only=wish.only)
    except Exception as error:  # noqa: BLE001 - told to the driver
        _say(Said(error=f"{type(error).__name__}: {error}"))
        sys.exit(1)
    _say(Said(address=address_of(wish.options.host, port)))
    server.run(sockets=[listening])


def _end_with_the_driver(parent: int) -> None:
    """When the input ends, the driver has closed it, or is gone. A fork of the driver's may keep its end open, so its id is looked at too.

    Not through `sys.stdin`: at its end Python would wait for a lock that this thread has.
    """
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], LOOK_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    os._exit(0)


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
