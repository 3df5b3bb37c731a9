"""`penstock dashboard`, as a person starts and ends it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from builders.dashboard_site import TOKEN, StoredJob
from penstock.cli import main


@contextmanager
def dashboard(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-c",
        "from penstock.cli import main; main()",
        "dashboard",
        *map(str, arguments),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(address: str, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, json.loads(body)


def test_it_shows_all_jobs_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """Those of several storages, and the folder of one job; the address, with a new token, is all that it prints."""
    for place, name in (("a", "views"), ("a", "orders"), ("b", "views"), ("c", "alone"), ("c", "not this")):
        if name != "not this":
            StoredJob(tmp_path / place, name)
    with dashboard(tmp_path / "a", tmp_path / "b", tmp_path / "c" / "alone", "--ui", ":0") as process:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("/login?token=")
        assert ask(address, "/index.json")[0] == 401
        status, said = ask(address, "/index.json", Authorization=f"Bearer {token}")
        assert status == 200
        assert [one["name"] for one in said["jobs"]] == ["alone", "orders", "views", "views"]
        assert len({one["id"] for one in said["jobs"]}) == 4
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (0, "")
    assert "Ctrl-C ends the server" in err


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """It is asked for, and is neither printed nor on the command line."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    for arguments, environment in ((["--token-file", file], {}), ([], {"PENSTOCK_UI_TOKEN": TOKEN})):
        with dashboard(tmp_path, "--ui", ":0", *arguments, **environment) as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert ask(address, "/index.json")[0] == 401
            assert ask(address, "/index.json", Authorization=f"Bearer {TOKEN}")[0] == 200
            assert TOKEN not in " ".join(psutil.Process(process.pid).cmdline())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        assert TOKEN not in out + err
        assert "can read" not in err


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command in this process; what it says on standard error, when it ends with 2."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["penstock", "dashboard", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return call


def test_what_cannot_work_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    """Exit code 2, with what to do, before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = refused(tmp_path, "--ui", f":{other.getsockname()[1]}")
    assert "another program uses the port" in taken
    assert "needs a token" in refused(tmp_path, "--ui", "0.0.0.0:0")
    assert "has no port" in refused(tmp_path, "--ui", "nowhere")
    assert "cannot be read" in refused(tmp_path, "--token-file", tmp_path / "missing")
    assert "ftp" in refused("ftp://host/jobs")
    assert "STORAGE" in refused()


def test_a_token_that_others_can_read_is_told(tmp_path: Path) -> None:
    """With how to mend it."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    with dashboard(tmp_path, "--ui", ":0", "--token-file", file) as process:
        assert process.stderr is not None
        assert f"chmod 600 {file}" in process.stderr.readline()
