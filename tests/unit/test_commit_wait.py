"""What a person reads of a sink that is down: one line when it begins, one a minute while it lasts, one when it is over."""

from __future__ import annotations

import pytest

from penstock.checkpoint.commits import SPEAK_EVERY_S, CommitWait, one_line
from penstock.errors import UnavailableError
from penstock.testing.virtual import VirtualClock

DOWN = UnavailableError("Kafka is down")


class Story:
    """A sink whose commits fail, and what is said of it, with the second in which it is said."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.wait = CommitWait("to-kafka", self.clock)
        self.said: list[tuple[float, str]] = []

    def hear(self, line: str | None) -> None:
        if line is not None:
            self.said.append((self.clock.monotonic(), line))

    def let_pass(self, seconds: int, *, fails_every_s: int = 0) -> None:
        for second in range(seconds):
            self.clock.advance(1)
            self.hear(self.wait.tick())
            if fails_every_s and second % fails_every_s == 0:
                self.hear(self.wait.failed(DOWN))


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_commit_that_succeeds_is_not_worth_a_line(story: Story) -> None:
    """Nothing is said of what works."""
    story.wait.begun(3)
    story.let_pass(5)
    story.hear(story.wait.done(3))
    story.let_pass(1000)
    assert story.said == []


def test_a_sink_that_is_down_for_five_minutes(story: Story) -> None:
    """However often it fails: when it begins, once a minute with how many wait, and when it is over."""
    story.wait.begun(2)
    story.let_pass(150, fails_every_s=1)
    story.wait.begun(3)
    story.let_pass(150, fails_every_s=1)
    story.hear(story.wait.done(2))
    times, lines = zip(*story.said, strict=True)
    assert times == (1, 61, 121, 181, 241, 300)
    assert lines[0] == (
        "sink to-kafka: commit failed, 2 transactions wait for it, it is tried again until it succeeds: "
        "UnavailableError: Kafka is down"
    )
    assert lines[1].startswith(
        "sink to-kafka: 2 transactions wait to be committed, for 1 min 1 s now, 60 tries failed: "
    )
    assert "5 transactions wait to be committed, for 4 min 1 s" in lines[4]
    assert lines[5] == (
        "sink to-kafka: the commit succeeded after 5 min and 301 tries, 2 transactions are committed; "
        "3 others wait after it"
    )


def test_a_call_that_hangs(story: Story) -> None:
    """A try that does not come back is spoken of, too."""
    story.wait.begun(1)
    story.let_pass(130)
    assert [time for time, _ in story.said] == [SPEAK_EVERY_S, 2 * SPEAK_EVERY_S]
    assert story.said[0][1] == (
        "sink to-kafka: 1 transaction waits to be committed, for 1 min now: the call has not come back yet"
    )


def test_the_next_trouble_is_a_new_one(story: Story) -> None:
    """After it is over the first failure is spoken of at once."""
    for _ in range(2):
        story.wait.begun(1)
        story.hear(story.wait.failed(DOWN))
        story.hear(story.wait.done(1))
    assert [line.split(":")[1][:14] for _, line in story.said] == [" commit failed", " the commit su"] * 2


def test_an_error_is_one_line() -> None:
    """Drivers add stacks and statements."""
    assert one_line(ValueError("down\n  at A\n  at B")) == "ValueError: down at A at B"
    assert len(one_line(ValueError("x" * 10_000))) < 1000


def test_a_function_of_the_user_that_raises(story: Story) -> None:
    """The line is said at which their code was."""

    def hand_over() -> None:
        raise KeyError("order")

    with pytest.raises(KeyError) as raised:
        hand_over()
    story.wait.begun(1)
    story.hear(story.wait.failed(raised.value))
    (said,) = (line for _, line in story.said)
    assert said.endswith(', in hand_over: raise KeyError("order"))')
    assert f"KeyError: 'order' (at {__file__}:" in said
