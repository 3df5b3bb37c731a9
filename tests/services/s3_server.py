"""A real S3 server on loopback: versitygw, or moto where versitygw can neither be found nor built.

versitygw is built by Go, some minutes once, beside the tests of `make test-all` (`python tests/services/s3_server.py`); its binary is kept in the cache of this user, and used by every command
from then on. moto comes from the package index, into a folder of the same cache: boto3 pins packages that Penstock uses.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from penstock.spark.java import cache_dir
from services import summary, tiers
from services.one_at_a_time import one_at_a_time
from services.patience import tries

VERSITYGW = "1.8.0"
MOTO = ("moto[s3]==5.2.5", "boto3==1.44.3", "flask==3.1.3", "flask-cors==6.0.5")
KEY, SECRET, REGION = "AKIAOFTHETESTS", "swordfish-of-the-tests", "us-east-1"
BUCKET = "bucket"
BUILD_S = 900


class NoServerError(Exception):
    """There is no S3 server here, and none can be fetched; the text says why."""


@dataclass(frozen=True)
class S3Server:
    """One server, with one empty bucket."""

    port: int
    name: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """What a user sets to reach it."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
        }


@contextmanager
def running() -> Iterator[S3Server]:
    """Start it; raises `NoServerError` where it cannot be had."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # its files have extended attributes, which a folder in memory may not
    with tempfile.TemporaryDirectory(prefix="penstock-s3-", dir="/var/tmp") as folder:
        gateway = _versitygw()
        if gateway is not None:
            (Path(folder) / BUCKET).mkdir()
            command = [str(gateway), "-q", "--port", f"127.0.0.1:{port}", "posix", folder]
            added = {"ROOT_ACCESS_KEY_ID": KEY, "ROOT_SECRET_ACCESS_KEY": SECRET}
            name = f"versitygw {VERSITYGW}"
        else:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
            added = {"PYTHONPATH": str(_moto()), "PYTHONWARNINGS": "ignore"}
            name = MOTO[0].replace("[s3]==", " ")
        process = subprocess.Popen(
            command, env=os.environ | added, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for(process, port)
            if gateway is None:
                _make_bucket(port)
            summary.started("S3", f"({name})")
            yield S3Server(port, name)
        finally:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in tries(0.05):
        if process.poll() is not None:
            raise NoServerError(f"the server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            continue
        return
    raise AssertionError("the server did not start")


def _make_bucket(port: int) -> None:
    made = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(made).close()


def _versitygw() -> Path | None:
    """The binary, from the cache; `make test-all` builds it if it is not there."""
    binary = cache_dir() / f"versitygw-{VERSITYGW}"
    go = shutil.which("go")
    if binary.is_file() or not tiers.everything() or go is None:
        return binary if binary.is_file() else None
    with one_at_a_time(binary):
        if not binary.is_file():
            _build(go, binary)
    return binary if binary.is_file() else None


def _build(go: str, binary: Path) -> None:
    with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
        module = f"github.com/versity/versitygw/cmd/versitygw@v{VERSITYGW}"
        try:
            subprocess.run(
                ["nice", go, "install", module],
                env=os.environ | {"GOBIN": folder, "GOFLAGS": "-buildvcs=false"},
                check=True,
                capture_output=True,
                timeout=BUILD_S,
            )
        except (OSError, subprocess.SubprocessError):
            return  # moto then
        (Path(folder) / "versitygw").rename(binary)


def _moto() -> Path:
    """The folder with its packages."""
    folder = (
        cache_dir() / f"moto-{MOTO[0].partition('==')[2]}-py{sys.version_info.major}{sys.version_info.minor}"
    )
    with one_at_a_time(folder):
        if folder.is_dir():
            return folder
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            done = subprocess.run(
                [*pip, "--target", str(fresh), *MOTO], capture_output=True, text=True, check=False
            )
            if done.returncode:
                why = next(iter(reversed(done.stderr.strip().splitlines())), "pip said nothing")
                raise NoServerError(f"moto cannot be fetched: {why}")
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


if __name__ == "__main__":
    print(_versitygw() or "no Go here: the tests use moto")
