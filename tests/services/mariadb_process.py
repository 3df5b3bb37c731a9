"""A real MariaDB in a temporary folder, on 127.0.0.1: the installed one, or Debian's package unpacked into a cache folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from services import summary
from services.one_at_a_time import one_at_a_time
from services.patience import tries

PASSWORD = "s3cret-of-the-tests"
PACKAGES = ["mariadb-server-core", "mariadb-server", "libaio1", "liburing2"]
"""The server, its SQL for system tables, and the libraries that a machine may lack."""
SYSTEM_TABLES = ["mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql"]


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-tests" / "mariadb"


def fetched() -> Path:
    """The root of an unpacked package; downloaded once, without root's rights."""
    root = cache_folder()
    with one_at_a_time(root):
        if not (root / "complete").exists():
            _fetch(root)
    return root


def _fetch(root: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("MariaDB: mariadbd is not installed, and without apt-get it cannot be fetched")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for package in PACKAGES:
            got = subprocess.run(
                ["apt-get", "download", package], cwd=folder, capture_output=True, text=True, check=False
            )
            if got.returncode and package.startswith("mariadb"):
                last = (got.stderr.strip().splitlines() or ["no answer"])[-1]
                pytest.skip(f"MariaDB: mariadbd is not installed and cannot be downloaded: {last}")
        for archive in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", archive, root], check=True)
    (root / "complete").touch()


class MariaDBProcess:
    """One server; it can be killed and started again."""

    def __init__(self) -> None:
        installed = shutil.which("mariadbd") or next(
            (path for path in ("/usr/sbin/mariadbd", "/usr/local/sbin/mariadbd") if Path(path).exists()), None
        )
        root = Path("/") if installed else fetched()
        self.program = Path(installed or root / "usr/sbin/mariadbd")
        self.share = root / "usr/share/mysql"
        libraries = [str(path.parent) for path in root.glob("usr/lib/*/libaio.so.1")] if not installed else []
        self.environment = (
            {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)} if libraries else dict(os.environ)
        )
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-my-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self._reader: Any = None
        self._install()
        self.start()

    def url(self, database: str, *, user: str = "owner", password: str = PASSWORD) -> str:
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> Any:
        """Connect as a reader does, not as the sink does."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="owner", password=PASSWORD, database=database, autocommit=True,
            ssl_disabled=True, charset="utf8mb4", cursorclass=pymysql.cursors.DictCursor,
        )  # fmt: skip

    def query(self, statement: str, database: str | None = None) -> list[dict[str, Any]]:
        """Run a statement on a connection that stays open."""
        if self._reader is None:
            self._reader = self.connect()
        if database is not None:
            self._reader.select_db(database)
        with self._reader.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self) -> None:
        """Start and wait until it answers."""
        options = [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder}/socket"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(*options), stdout=log, stderr=log, env=self.environment
            )
        for _ in tries(0.1):
            with contextlib.suppress(pymysql.OperationalError):
                with contextlib.closing(self.connect()) as connection:
                    version = connection.get_server_info().removeprefix("5.5.5-")  # MySQL's, for old clients
                summary.started("MariaDB", version.partition("-")[0])
                return
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
        raise RuntimeError("MariaDB does not answer")

    def kill(self) -> None:
        """Kill -9."""
        assert self.process is not None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self.process.kill()
        self.process.wait()

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, *options: str) -> list[str]:
        return [
            str(self.program), "--no-defaults", f"--datadir={self.folder}/data", f"--lc-messages-dir={self.share}",
            f"--character-sets-dir={self.share}/charsets", f"--tmpdir={self.folder}", "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M", "--skip-name-resolve", "--innodb-flush-method=nosync",
            *(["--user=root"] if os.geteuid() == 0 else []), *options,
        ]  # fmt: skip

    def _install(self) -> None:
        """Make the system tables and a user with a password, as mariadb-install-db does."""
        (self.folder / "data").mkdir()
        parts = [(self.share / name).read_text(encoding="utf-8") for name in SYSTEM_TABLES]
        text = "\n".join(["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;", *parts])
        user = f"GRANT ALL ON *.* TO 'owner'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}' WITH GRANT OPTION;"
        text += f"\nFLUSH PRIVILEGES;\n{user}\n"
        made = subprocess.run(
            self._command("--bootstrap", "--skip-networking"), input=text, capture_output=True, text=True, check=False,
            env=self.environment,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(made.stdout + made.stderr)


@contextlib.contextmanager
def running() -> Iterator[MariaDBProcess]:
    """A server for the time of a block."""
    server = MariaDBProcess()
    try:
        yield server
    finally:
        server.remove()
