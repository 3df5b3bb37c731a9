"""Whether all that lay in sources that cannot be asked is committed: what a look says that began before that moment."""

from __future__ import annotations

from penstock.spark.positions import SilentSince
from penstock.testing.virtual import VirtualClock


class Query:
    """One that looks at its sources, or rests."""

    looks = False

    def rests(self) -> bool:
        return not self.looks

    def has_nothing_left(self) -> bool:
        return not self.looks


def test_a_look_that_began_before_says_nothing() -> None:
    """The listing of a bucket takes long: what came behind its first page is not in it."""
    clock, query = VirtualClock(), Query()
    query.looks = True
    silent = SilentSince(lambda: query, 0.5, clock)
    assert not silent()
    clock.sleep(10.0)
    query.looks = False
    assert not silent(), "it ends now, and began before the moment"
    clock.sleep(0.4)
    assert not silent(), "the next look may not have begun"
    clock.sleep(0.2)
    query.looks = True
    assert not silent(), "the next look is not over"
    query.looks = False
    assert silent()


def test_without_a_query_nobody_knows() -> None:
    """A job that goes back has none, and one that has ended."""
    clock = VirtualClock()
    silent = SilentSince(lambda: None, 0.5, clock)
    assert not silent()
    clock.sleep(10.0)
    assert not silent()
