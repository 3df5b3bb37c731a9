"""Handing the state of P subtasks to Q subtasks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IncompatibleStateError
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.state_plan import redistribute
from penstock.state.handle import FileRef, StateHandle
from penstock.state.keys import groups_owned, owner


def former(parallelism: int) -> list[StateHandle]:
    return [
        StateHandle(SubtaskId("views", index), "filesystem", 9, (FileRef(1, 1, "", f"file-{index}"),))
        for index in range(parallelism)
    ]


def rescaled(handles: list[StateHandle], parallelism: int, backend: str = "filesystem"):
    return redistribute(
        handles, uid="views", parallelism=parallelism, version=CheckpointId(7), backend=backend
    )


@given(old=st.integers(1, 12), new=st.integers(1, 12), max_parallelism=st.integers(12, 64))
def test_every_key_group_is_found_by_its_new_owner(old: int, new: int, max_parallelism: int) -> None:
    """Whatever the parallelisms, a new subtask names the file of every former subtask that owned one of its groups."""
    handles = rescaled(former(old), new)
    for index in range(new):
        files = handles[SubtaskId("views", index)].files
        needed = {f"file-{owner(group, old)}" for group in groups_owned(index, new, max_parallelism)}
        assert needed <= files


@given(parallelism=st.integers(1, 12))
def test_the_same_parallelism_hands_everything_back(parallelism: int) -> None:
    """Without a change each subtask gets its own refs and no other, at the restored version."""
    for handle in former(parallelism):
        again = rescaled(former(parallelism), parallelism)[handle.subtask]
        assert (again.refs, again.version, again.subtask) == (handle.refs, 7, handle.subtask)


def test_half_the_parallelism_names_two_files() -> None:
    """From 4 to 2, subtask 0 takes over 0 and 2, and none of the others."""
    assert rescaled(former(4), 2)[SubtaskId("views", 0)].files == {"file-0", "file-2"}


def test_files_keep_their_order() -> None:
    """The newest file of a former subtask stays in front."""
    refs = (FileRef(1, 1, "", "new"), FileRef(1, 1, "", "old"))
    handle = StateHandle(SubtaskId("views", 0), "filesystem", 9, refs)
    assert all(one.refs == refs for one in rescaled([handle], 3).values())


def test_no_state_at_all() -> None:
    """An operator without handles starts empty."""
    assert [one.refs for one in rescaled([], 2).values()] == [(), ()]


def test_a_missing_subtask_is_refused() -> None:
    """State with a hole in it is not restored as if it were whole."""
    with pytest.raises(
        IncompatibleStateError, match=r"operator views: .*subtasks \[0, 2\], some are missing"
    ):
        rescaled([former(3)[0], former(3)[2]], 2)


def test_what_another_backend_wrote_is_read_by_that_one() -> None:
    """A handle names the backend that wrote its files; files of two backends in one state are refused."""
    assert {one.backend for one in rescaled(former(2), 3, backend="memory").values()} == {"filesystem"}
    other = msgspec.structs.replace(former(2)[1], backend="rocksdb")
    with pytest.raises(IncompatibleStateError, match="backends filesystem and rocksdb"):
        rescaled([former(2)[0], other], 1)


def test_another_backend_for_empty_state() -> None:
    """Where there is no state yet the backend may change."""
    empty = [StateHandle(SubtaskId("views", 0), "filesystem", 9)]
    assert rescaled(empty, 1, backend="memory")[SubtaskId("views", 0)].backend == "memory"
