from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import penstock

SOURCES = Path(penstock.__file__).parent
SINGLE_THREADED = {"demo", "simulation"}

RACE = """
import sys, threading
import msgspec
from penstock.checkpoint import metadata
from penstock.snapshot import mailbox
from penstock.snapshot.mailbox import UploadDone
from penstock.ids import SubtaskId
from penstock.state.handle import FileRef, StateHandle

handle = StateHandle(SubtaskId("views", 0), "filesystem", 1, (FileRef(1, 2, "c", "n"),))
message = msgspec.json.encode(UploadDone(1, handle, 1.0))
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(4)

def decode():
    barrier.wait()
    mailbox._MESSAGES.decode(message)

threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_types_are_known_before_threads_meet_them():
    """No module lets msgspec look at a type for the first time in a call: two threads doing so at once crash the process."""
    late = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in sorted(SOURCES.rglob("*.py"))
        if not SINGLE_THREADED & set(path.parts)
        for line in path.read_text().splitlines()
        if re.search(r"json\.decode\(.*type=", line)
    ]
    assert late == []


def test_transactions_are_known_before_threads_meet_them():
    """Sinks commit in threads of their own: every type of transaction is shown to msgspec when its module is loaded."""
    kinds = {
        name: path
        for path in sorted(SOURCES.rglob("*.py"))
        for name in re.findall(
            r"^class (\w*Transaction)\((?:NamedTransaction|StagedTransaction|msgspec\.Struct)",
            path.read_text(),
            re.MULTILINE,
        )
        if name != "NamedTransaction"
    }
    assert {"SqlTransaction", "StagedTransaction", "KafkaTransaction"} <= kinds.keys()
    assert [
        name
        for name, path in kinds.items()
        if not re.search(rf"^msgspec\.json\.Decoder\(\s*{name}\s*\)", path.read_text(), re.MULTILINE)
    ] == []


def test_first_messages_at_the_same_moment():
    """Messages that come in at once, the first ones of a driver's life, are read without a crash."""
    for _ in range(10):
        ended = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
