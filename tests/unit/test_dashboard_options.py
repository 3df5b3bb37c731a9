"""What `ui=` and its token mean, before anything is started."""

from __future__ import annotations

import msgspec
import pytest

from builders.dashboard_site import TOKEN
from penstock.dashboard.ui_options import Ui, UiOptions, address_of, is_loopback
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("ui", "host", "port"),
    [
        ("127.0.0.1:8090", "127.0.0.1", 8090),
        (":8091", "127.0.0.1", 8091),
        ("8092", "127.0.0.1", 8092),
        (8093, "127.0.0.1", 8093),
        (0, "127.0.0.1", 0),
        ("localhost:1", "localhost", 1),
        ("[::1]:8090", "::1", 8090),
        (" 127.0.0.1:8090 ", "127.0.0.1", 8090),
    ],
)
def test_an_address_may_be_written_in_many_ways(ui: str | int, host: str, port: int) -> None:
    """A missing host is this machine alone."""
    options = UiOptions.of(Ui(ui))
    assert (options.host, options.ports) == (host, (port,))


def test_true_takes_the_first_free_port() -> None:
    """From 8090 on, and any other when many are taken."""
    ports = UiOptions.of(Ui()).ports
    assert ports[:2] == (8090, 8091)
    assert ports[-1] == 0


@pytest.mark.parametrize(
    "ui", ["", "nowhere", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", -1, 70000, None, False, 1.5, "::1:80",
           "[x:y]:80", "http://127.0.0.1:80", "a b:80", "127.0.0.1:\uff18\uff10"],
)  # fmt: skip
def test_what_is_no_address_is_refused(ui: object) -> None:
    """With a form that works."""
    with pytest.raises(ConfigError, match=r"8090"):
        Ui(ui, token=TOKEN)  # type: ignore[arg-type]


def test_without_a_token_one_is_made() -> None:
    """Every other user of the machine reaches 127.0.0.1, too. It is another one each time, and part of the address that is printed."""
    one, other = UiOptions.of(Ui()), UiOptions.of(Ui())
    assert one.token is not None
    assert other.token is not None
    assert one.token != other.token
    assert one.opening_address(8090) == f"http://127.0.0.1:8090/login?token={one.token}"
    assert one.token not in repr(one)


def test_a_token_that_was_given_is_not_printed() -> None:
    """Whoever gave it knows it, and logs are kept."""
    assert UiOptions.of(Ui(token=TOKEN)).opening_address(8090) == "http://127.0.0.1:8090"


@pytest.mark.parametrize("folder", ["relative", "", "s3://bucket/x", "/"])
def test_a_folder_for_savepoints_is_a_whole_path(folder: str) -> None:
    """What is none is refused before anything starts; the root would be no limit."""
    with pytest.raises(ConfigError, match="savepoints"):
        Ui(savepoints=(folder,))


@pytest.mark.parametrize("ui", ["0.0.0.0:8090", "192.168.1.4:8090", "[::]:8090", "driver-3:8090"])
def test_an_address_that_others_reach_needs_a_token(ui: str) -> None:
    """Without one it is refused, with what to do."""
    with pytest.raises(ConfigError, match=r"needs a token.*PENSTOCK_UI_TOKEN.*127\.0\.0\.1"):
        UiOptions.of(Ui(ui))
    assert UiOptions.of(Ui(ui, token=TOKEN)).token == TOKEN


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 513, "a token with some spaces", "schlüssel-mit-umlaut", "a" * 20 + "\n"]
)
def test_a_weak_or_odd_token_is_refused_and_not_shown(token: str) -> None:
    """Its length may be said, itself never."""
    with pytest.raises(ConfigError, match="openssl rand -hex 24") as refused:
        Ui("127.0.0.1:8090", token=token)
    assert not token or token not in str(refused.value)


def test_the_token_is_in_no_text() -> None:
    """Whoever logs the options does not log it; the child process is told it all the same."""
    options = UiOptions.of(Ui(8090, token=TOKEN))
    assert TOKEN not in f"{options} {options!r}"
    assert msgspec.json.decode(msgspec.json.encode(options), type=UiOptions) == options


@pytest.mark.parametrize(("host", "is_it"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("LOCALHOST", True),
                                             ("0.0.0.0", False), ("10.0.0.1", False), ("localhost.evil.com", False)])  # fmt: skip
def test_loopback_is_this_machine_alone(host: str, is_it: bool) -> None:
    """A name other than localhost may lead anywhere."""
    assert is_loopback(host) is is_it


def test_addresses_can_be_opened() -> None:
    """An IPv6 address has brackets."""
    assert address_of("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert address_of("::1", 80) == "http://[::1]:80"
