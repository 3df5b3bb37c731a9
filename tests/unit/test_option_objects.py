"""Options that belong together can be given in one object: `EventTime` for a source, `Ui` for the pages of a job."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

import penstock as ps
from penstock import job as jobs

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
    whole = jobs._ui_options(ps.Ui(8123, token=token, read_only=True, names=("gate",)), None, read_only=False)
    short = jobs._ui_options(8123, token, read_only=True)
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
        jobs._ui_options(ps.Ui(8123, **{option: given}), None, read_only=False)


def test_a_ui_beside_its_own_options_is_refused() -> None:
    """Two tokens for one page would be one too many."""
    with pytest.raises(ps.ConfigError, match="give them to Ui"):
        jobs._ui_options(ps.Ui(8123), "t" * 20, read_only=False)


@pytest.mark.parametrize("ui", [None, False])
def test_options_of_a_ui_that_is_not_served_are_refused(ui: object) -> None:
    """A token without `ui=` would protect nothing, and its user would look for the pages in vain."""
    with pytest.raises(ps.ConfigError, match="need ui="):
        jobs._ui_options(ui, "t" * 20, read_only=False)  # type: ignore[arg-type]
    with pytest.raises(ps.ConfigError, match="need ui="):
        jobs._ui_options(ui, None, read_only=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["no", 0, None])
def test_whether_rows_are_shown_is_true_or_false(given: object) -> None:
    """A word such as "no" would count as true, and rows would be shown."""
    with pytest.raises(ps.ConfigError, match="neither True nor False"):
        ps.Job("views", storage="unused", show_rows=given)  # type: ignore[arg-type]
