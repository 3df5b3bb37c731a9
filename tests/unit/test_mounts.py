"""File systems that would let two runs own a job are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock import sinks
from penstock.errors import ConfigError
from penstock.storage import LocalStorage, place_checks
from penstock.storage.place_checks import mount_of, refuse_stale_listings, why_unsafe

TABLE = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 21 0:40 / /shared rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2,hard,proto=tcp
41 21 0:41 / /fresh rw,relatime - nfs server:/export rw,vers=3,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0
42 21 0:42 / /noac rw,relatime - nfs4 server:/export rw,sync,noac,vers=4.1
43 21 0:43 / /buck\\040et rw - fuse.s3fs s3fs rw
45 21 0:45 / /s3 rw - fuse mountpoint-s3 rw
46 21 0:46 / /far rw - fuse.sshfs user@host:/x rw
44 40 8:2 / /shared/disk rw,relatime - xfs /dev/sdb rw
a line that nobody understands
"""


@pytest.mark.parametrize(
    ("path", "kind", "unsafe"),
    [
        ("/var/lib", "ext4", None),
        ("/shared/jobs", "nfs4", "noac or actimeo=0"),
        ("/shared2", "ext4", None),
        ("/shared/disk/jobs", "xfs", None),
        ("/fresh/jobs", "nfs", None),
        ("/noac", "nfs4", None),
        ("/buck et/jobs", "fuse.s3fs", "create the same file"),
        ("/s3", "fuse", "create the same file"),
        ("/far/jobs", "fuse.sshfs", "listings may be outdated"),
    ],
)
def test_mounts_are_told_apart(path: str, kind: str, unsafe: str | None) -> None:
    """The innermost mount that holds a path decides: NFS that caches listings and mounted object stores are unsafe."""
    mount = mount_of(Path(path), TABLE)
    assert mount is not None
    assert mount.kind == kind
    why = why_unsafe(mount)
    assert why is None if unsafe is None else unsafe in str(why)


def test_a_job_on_such_a_mount_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage and the folder of a sink say where they are and what to do, and write nothing there."""
    table = tmp_path / "mountinfo"
    table.write_text(
        f"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 21 0:40 / {tmp_path} rw - nfs4 server:/x rw,vers=4.2\n"
    )
    monkeypatch.setattr(place_checks, "MOUNTS", table)
    with pytest.raises(
        ConfigError, match=r"storage .*store is on nfs4, mounted at .* mount it with the option noac"
    ):
        LocalStorage(tmp_path / "store").check_writable()
    for sink in (sinks.Files(tmp_path / "out"), sinks.SQLite(tmp_path / "out.db", table="t")):
        with pytest.raises(ConfigError, match=r"is on nfs4"):
            sink.validate(pa.schema([("n", pa.int64())]))
    assert [path.name for path in tmp_path.iterdir()] == ["mountinfo"]


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems without a mount table work as ever."""
    monkeypatch.setattr(place_checks, "MOUNTS", tmp_path / "none")
    refuse_stale_listings(tmp_path, "storage")


FSTAB = """\
# what is mounted where
UUID=1 / ext4 defaults 0 1
server:/export /shared nfs4 noac 0 0
server:/jobs /plan\\040ned nfs4 noac 0 0
UUID=2 none swap sw 0 0
"""


@pytest.mark.parametrize(
    ("path", "missing"),
    [("/shared/jobs", None), ("/plan ned/jobs", "/plan ned"), ("/plan ned", "/plan ned"), ("/var/lib", None)],
)
def test_what_is_to_be_mounted_and_is_not(
    path: str, missing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path below a mount of fstab that is not in the table of mounts is found, with the mount; others are not."""
    for name, content in (("MOUNTS", TABLE), ("PLANNED_MOUNTS", FSTAB)):
        (tmp_path / name).write_text(content)
        monkeypatch.setattr(place_checks, name, tmp_path / name)
    assert place_checks.not_mounted(Path(path)) == (None if missing is None else Path(missing))


def test_a_folder_that_is_not_mounted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is not started on another disk than is meant; a missing folder of /mnt says that it can be made."""
    with pytest.raises(
        ConfigError, match=r"below /mnt/no-such-disk, but nothing is mounted there.*create it first"
    ):
        LocalStorage("/mnt/no-such-disk/jobs").check_place()
    planned = tmp_path / "disk"
    planned.mkdir()
    (tmp_path / "fstab").write_text(f"server:/jobs {planned} nfs4 noac 0 0\n")
    monkeypatch.setattr(place_checks, "PLANNED_MOUNTS", tmp_path / "fstab")
    with pytest.raises(ConfigError, match="nothing is mounted there") as raised:
        LocalStorage(planned / "jobs").check_place()
    assert "create it first" not in str(raised.value)
    assert list(planned.iterdir()) == []
