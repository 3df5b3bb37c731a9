"""Numbers as people read them."""

from __future__ import annotations

import pytest

from penstock import wording


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1_500, "1,500 rows")]
)
def test_a_count_has_its_noun_in_the_right_number(number: int, said: str) -> None:
    """One row is a row, all other numbers are rows."""
    assert wording.counted(number, "row") == said


def test_a_plural_of_its_own_is_used() -> None:
    """Batch becomes batches because the caller says so."""
    assert [wording.counted(number, "batch", "batches") for number in (1, 3)] == ["1 batch", "3 batches"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 ms"),
        (0.00421, "4.2 ms"),
        (0.00997, "10 ms"),
        (0.056, "56 ms"),
        (0.9996, "1 s"),
        (1.0, "1 s"),
        (1.34, "1.3 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (125.0, "2 min 5 s"),
        (3600.0, "1 h"),
        (3780.0, "1 h 3 min"),
        (187_200.0, "2 d 4 h"),
    ],
)
def test_a_duration_is_as_exact_as_a_person_wants_it(seconds: float, said: str) -> None:
    """Short times have milliseconds, long ones minutes, hours and days; never 60 s or 0.0 of anything."""
    assert wording.duration(seconds) == said


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [(0, "0 B"), (1023, "1023 B"), (8192, "8.0 KB"), (5 << 20, "5.0 MB"), (3 << 40, "3.0 TB")],
)
def test_a_size_has_the_unit_that_keeps_it_short(size_bytes: int, said: str) -> None:
    """Sizes grow by units of 1,024 bytes."""
    assert wording.size(size_bytes) == said


def test_names_have_their_noun_in_the_right_number() -> None:
    """One operator is not called operators; a list is read as people write it."""
    assert wording.named(["c"], "operator") == "operator c"
    assert wording.named(["a", "b"], "operator") == "operators a, b"
    assert wording.named(["a", "b"], "batch", "batches") == "batches a, b"


def test_a_noun_has_its_article() -> None:
    """An operator, a sink."""
    assert [wording.with_article(noun) for noun in ("operator", "sink")] == ["an operator", "a sink"]


@pytest.mark.parametrize("us", [1, 999, 1_000, 60_000_000, 90_000_000, 3_600_000_000, 86_400_000_000 * 7])
def test_an_exact_duration_is_understood_again(us: int) -> None:
    """What is said of a duration is the duration, whatever its unit; other words are none."""
    assert wording.in_so_many_us(wording.exactly(us)) == us
    assert wording.in_so_many_us(f"{us} weeks") is None
    assert wording.in_so_many_us("some d") is None
