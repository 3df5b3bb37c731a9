"""Options that belong together can be given in one object: `EventTime` for a source, `Ui` for the pages of a job."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

import penstock as ps
from penstock.start_options import StartOptions
from penstock.wording import asked_on_the_command_line

OPTIONS: dict[str, Any] = asdict(ps.EventTime("at"))
del OPTIONS["column"]


def test_a_column_with_options_beside_it_is_an_event_time() -> None:
    """The short spelling means the same as the object."""
    short = ps.EventTime.of("s", "at", **{**OPTIONS, "out_of_order": "30s"})
    assert short == ps.EventTime("at", out_of_order="30s")


def test_an_event_time_is_taken_as_it_is() -> None:
    """The object has everything, so that nothing is added to it; without any there is no event time."""
    whole = ps.EventTime("at", idle_after=None)
    assert ps.EventTime.of("s", whole, **OPTIONS) is whole
    assert ps.EventTime.of("s", None, **OPTIONS) is None


@pytest.mark.parametrize("event_time", [None, ps.EventTime("at")])
def test_options_without_a_column_are_refused(event_time: ps.EventTime | None) -> None:
    """An option that would have no effect is refused by its name."""
    with pytest.raises(ps.ConfigError, match="has max_ahead"):
        ps.EventTime.of("s", event_time, **{**OPTIONS, "max_ahead": "5s"})


def test_the_pages_of_a_job_in_one_object() -> None:
    """`Ui` means the same as the arguments beside `ui=`, and does not show its token."""
    token = "t" * 20
    whole = StartOptions(ui=ps.Ui(8123, token=token, read_only=True, names=("gate",))).pages
    short = StartOptions(ui=8123, ui_token=token, ui_read_only=True).pages
    assert whole is not None
    assert short is not None
    assert (whole.host, whole.ports, whole.token, whole.read_only) == (
        short.host,
        short.ports,
        short.token,
        short.read_only,
    )
    assert whole.names == ("gate",)
    assert token not in repr(ps.Ui(8123, token=token))


@pytest.mark.parametrize("given", ["/gate", [""], [7]])
@pytest.mark.parametrize("option", ["names", "savepoints"])
def test_a_text_in_place_of_several_is_refused(option: str, given: Any) -> None:
    """A name alone would be its letters, by none of which a reader comes."""
    with pytest.raises(ps.ConfigError, match=f"{option}="):
        ps.Ui(8123, **{option: given})


def test_a_ui_beside_its_own_options_is_refused() -> None:
    """Two tokens for one page would be one too many."""
    with pytest.raises(ps.ConfigError, match="give them to Ui"):
        StartOptions(ui=ps.Ui(8123), ui_token="t" * 20)


@pytest.mark.parametrize("ui", [None, False])
def test_options_of_a_ui_that_is_not_served_are_refused(ui: bool | None) -> None:
    """A token without `ui=` would protect nothing, and its user would look for the pages in vain."""
    with pytest.raises(ps.ConfigError, match="ui_token and ui_read_only need ui:"):
        StartOptions(ui=ui, ui_token="t" * 20)
    with asked_on_the_command_line(), pytest.raises(ps.ConfigError, match=r"--ui-token-file .* need --ui:"):
        StartOptions(ui=ui, ui_read_only=True)


@pytest.mark.parametrize("ui", ["0.0.0.0:8090", ps.Ui("0.0.0.0:8090")])
def test_a_missing_token_is_asked_for_where_the_user_can_give_it(
    ui: str | ps.Ui, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside `ui=`, in `Ui`, or in a file on the command line; the environment is named each time."""
    monkeypatch.delenv("PENSTOCK_UI_TOKEN", raising=False)
    spelled = r"Ui\(\.\.\., token=\.\.\.\)" if isinstance(ui, ps.Ui) else "ui_token"
    with pytest.raises(ps.ConfigError, match=f"more with {spelled} or in PENSTOCK_UI_TOKEN, or listen"):
        StartOptions(ui=ui)
    if isinstance(ui, str):
        with asked_on_the_command_line(), pytest.raises(ps.ConfigError, match="with --ui-token-file or in"):
            StartOptions(ui=ui)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out_of_order": "soon"}, "out_of_order='soon' is not a duration"),
        ({"idle_after": "0s"}, "idle_after='0s' is too short"),
        ({"max_ahead": 7}, "max_ahead=7 is not a duration"),
        ({"bad_event_time": "skip"}, "bad_event_time='skip' is unknown: choose 'late' or 'fail'"),
        ({"when_all_idle": "go"}, "when_all_idle='go' is unknown: choose 'wait' or 'follow_clock'"),
        ({"when_all_idle": "follow_clock", "idle_after": None}, "has no effect with idle_after=None"),
    ],
)
def test_an_event_time_is_whole_when_it_is_made(options: dict[str, Any], words: str) -> None:
    """What no source could use is refused where it is written, and not later by `read`."""
    with pytest.raises(ps.ConfigError, match=words):
        ps.EventTime("at", **options)


@pytest.mark.parametrize("given", ["no", 0, None])
def test_whether_rows_are_shown_is_true_or_false(given: object) -> None:
    """A word such as "no" would count as true, and rows would be shown."""
    with pytest.raises(ps.ConfigError, match="neither True nor False"):
        ps.Job("views", storage="unused", show_rows=given)  # type: ignore[arg-type]
