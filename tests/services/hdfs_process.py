"""A real HDFS on loopback: Hadoop's own MiniDFSCluster, three jars of 106 MB from Maven Central, fetched once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import ConfigError
from penstock.spark.java import JavaHome, cache_dir, find_java
from services import summary
from services.maven import SPARK_JARS, Part, resolve_all
from services.one_at_a_time import one_at_a_time

VERSION = "3.5.0"
SOURCE = Path(__file__).with_name("MiniHdfs.java")
_PARTS = [
    Part("org.apache.hadoop", module, VERSION)
    for module in ("hadoop-client-minicluster", "hadoop-client-runtime", "hadoop-client-api")
]
_OF_SPARK = ("slf4j-api-", "jcl-over-slf4j-")
"""What these jars name and do not have."""
_JVM = ["-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


class CannotStartError(Exception):
    """There is no Java that can compile here, or the cluster did not come up; the text says why."""


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Start it, and give its address, such as `hdfs://localhost:41234`."""
    try:
        java = find_java()
    except ConfigError as error:
        raise CannotStartError(str(error)) from error
    jars = resolve_all("hdfs", _PARTS)
    command = [
        str(java.path / "bin" / "java"),
        *_JVM,
        "-cp",
        _classpath(_compiled(java, jars), jars),
        SOURCE.stem,
    ]
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [*command, str(folder / "data")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(b"READY "):
                    summary.started("HDFS", VERSION)
                    yield line.decode().split()[1]
                    return
            raise CannotStartError(f"it ended with {process.wait()}, see {errors.name}")
        finally:
            process.stdin.close()
            process.kill()
            process.wait()
            process.stdout.close()


def _compiled(java: JavaHome, jars: Path) -> Path:
    made_from = hashlib.sha256(SOURCE.read_bytes() + f"{jars.name} {java.major}".encode()).hexdigest()[:16]
    folder = cache_dir() / "hdfs" / made_from
    with one_at_a_time(folder):
        if not folder.is_dir():
            fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
            compiler = [str(java.path / "bin" / "java"), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
            done = subprocess.run(
                [*compiler, "-nowarn", "-cp", _classpath(jars), "-d", str(fresh), str(SOURCE)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                shutil.rmtree(fresh)
                raise CannotStartError(
                    f"{SOURCE.name} cannot be compiled: {(done.stdout + done.stderr)[:300]}"
                )
            fresh.rename(folder)
    return folder


def _classpath(*folders: Path) -> str:
    jars = [jar for folder in folders for jar in (folder, *sorted(folder.glob("*.jar")))]
    jars += [jar for name in _OF_SPARK for jar in SPARK_JARS.glob(f"{name}*.jar")]
    return os.pathsep.join(map(str, jars))
