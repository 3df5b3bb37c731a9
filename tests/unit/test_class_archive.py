"""The archive of Spark's classes: who uses it, who has it made, and when it is another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark import java as java_module
from penstock.spark.java import (
    DRIVER_OPTIONS,
    KEPT,
    SWITCH,
    JavaHome,
    _forget_others,
    archive_options,
    make_if_missing,
)
from services import quick_spark


@pytest.fixture
def java(tmp_path, monkeypatch) -> JavaHome:
    """A Java to be looked at, and a cache with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(DRIVER_OPTIONS, raising=False)
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(java_module._Missing, "path", None)
    modules = tmp_path / "java" / "lib" / "modules"
    modules.parent.mkdir(parents=True)
    modules.write_text("classes")
    return JavaHome(tmp_path / "java", 17, "PATH", has_vector_module=True)


def missing(java: JavaHome) -> Path:
    assert archive_options(java, "") == ""
    found = java_module._Missing.path
    assert found is not None
    return found


def test_an_archive_that_is_there_is_used(java) -> None:
    """Java is told of it, and nothing is missing."""
    archive = missing(java)
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in archive_options(java, "-Xmx1g")
    assert make_if_missing() is None


@pytest.mark.parametrize("whose", ["another user's file", "open to all", "in a folder that is", "a link"])
def test_what_others_can_have_written_is_not_loaded(java, tmp_path, monkeypatch, whose: str) -> None:
    """Java runs what is in an archive as it is. One of one's own is made instead."""
    archive = missing(java)
    archive.parent.mkdir(parents=True)
    archive.touch(0o600)
    if whose == "open to all":
        archive.chmod(0o622)
    if whose == "in a folder that is":
        archive.parent.chmod(0o777)
    if whose == "a link":
        archive.rename(tmp_path / "other.jsa")
        archive.symlink_to(tmp_path / "other.jsa")
    if whose == "another user's file":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert missing(java) == archive


def test_a_job_goes_on_where_no_archive_can_be_made(java, tmp_path) -> None:
    """A cache that takes nothing, as on a full disk, is no reason for anything to fail."""
    missing(java)
    (tmp_path / "cache").write_text("no folder")
    assert make_if_missing() is None


def test_nothing_is_made_in_a_folder_of_another_user(java, monkeypatch) -> None:
    """It would be made again for every start, and used by none."""
    missing(java).parent.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert make_if_missing() is None


def test_a_spark_without_jars_starts_without_an_archive(java, tmp_path, monkeypatch) -> None:
    """As one that was built from its sources."""
    monkeypatch.setattr(java_module, "_find_spark_home", lambda: str(tmp_path / "spark"))
    assert archive_options(java, "") == ""
    assert make_if_missing() is None


def test_a_path_that_spark_would_cut_is_not_used(java, tmp_path, monkeypatch) -> None:
    """It separates options by spaces."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    assert archive_options(java, "") == ""
    assert make_if_missing() is None


def test_another_java_has_another_archive(java) -> None:
    """Also one that was updated in its place."""
    before = missing(java)
    (java.path / "lib" / "modules").write_text("other classes")
    assert missing(java) != before


@pytest.mark.parametrize("given", ["-XX:SharedArchiveFile=mine", "-XX:ArchiveClassesAtExit=mine"])
def test_who_has_an_archive_of_their_own_keeps_it(java, monkeypatch, given: str) -> None:
    """Options of the user's, in the settings or in the environment, are left alone, and nothing is made."""
    assert archive_options(java, given) == ""
    monkeypatch.setenv(DRIVER_OPTIONS, given)
    assert archive_options(java, "") == ""
    assert make_if_missing() is None


def test_it_can_be_switched_off(java, monkeypatch) -> None:
    """Then it is neither used nor made."""
    monkeypatch.setenv(SWITCH, "off")
    assert archive_options(java, "") == ""
    assert make_if_missing() is None


def test_archives_of_other_javas_do_not_pile_up(tmp_path) -> None:
    """The newest of them stay, and the present one."""
    own = tmp_path / "own.jsa"
    for number, path in enumerate([own, *(tmp_path / f"{number}.jsa" for number in range(KEPT + 2))]):
        path.touch()
        os.utime(path, (number, number))
    _forget_others(own)
    assert {path.name for path in tmp_path.iterdir()} == {"own.jsa", f"{KEPT}.jsa", f"{KEPT + 1}.jsa"}


@pytest.mark.spark
def test_java_starts_with_the_archive_that_was_made(tmp_path) -> None:
    """A session that finds none says so, the one that is made is whole, and the next Java maps Spark's classes from it."""
    program = (
        "from penstock.spark.local_session import local_session\n"
        "from penstock.spark.java import make_if_missing\n"
        "spark = local_session()\n"
        "made = make_if_missing()\n"
        "print(None if made is None else made.wait())\n"
        "print(list(spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()))\n"
    )
    environment = {**quick_spark.without(os.environ), "XDG_CACHE_HOME": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for _ in range(2)
    )
    [archive] = tmp_path.rglob("*.jsa")
    assert (first[0], second[0]) == ("0", "None")
    assert str(archive) in second[1]
    assert str(archive) not in first[1]
