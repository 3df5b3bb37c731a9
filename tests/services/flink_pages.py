"""Flink's own web pages, out of its jar, in front of Penstock's REST interface: the hardest of its clients. For tests only."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from penstock.dashboard.flink import flink_routes
from penstock.dashboard.status_poller import JobViews
from services import flink_client
from services.one_at_a_time import one_at_a_time

_INSIDE = "web/"


def page_files() -> Path:
    """The folder of the pages, unpacked once; raises `maven.JarsMissingError` where the jar cannot be had."""
    jars = flink_client.jars()
    folder = jars / "pages"
    with one_at_a_time(folder):
        if not folder.is_dir():
            (jar,) = jars.glob("flink-dist-*.jar")
            with zipfile.ZipFile(jar) as packed:
                names = [name for name in packed.namelist() if name.startswith(_INSIDE)]
                packed.extractall(jars / "unpacked", names)
            (jars / "unpacked" / _INSIDE).rename(folder)
    return folder


@contextmanager
def serving(jobs: JobViews) -> Iterator[str]:
    """The address of both on loopback, in a thread."""
    pages = Mount("/", StaticFiles(directory=page_files(), html=True))
    app = Starlette(routes=[*flink_routes(jobs), pages])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
