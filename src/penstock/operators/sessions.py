"""Stretches of time that touch become one, for many keys at once. Pure; executors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def joined_stretches(keys: Numbers, firsts: Numbers, lasts: Numbers) -> tuple[Numbers, Numbers]:
    """The positions that put stretches in the order of key and first moment, and where each stretch that they make together starts.

    Two of a key become one when no moment lies between them: one begins at the latest right behind the last
    moment of the other, as in Flink.
    """
    order = np.lexsort((firsts, keys))
    keys, firsts, lasts = keys[order], firsts[order], lasts[order]
    changes = keys[1:] != keys[:-1]
    so_far = _latest_so_far(np.concatenate(([0], np.cumsum(changes))), lasts) if len(order) else lasts
    apart = changes | (firsts[1:] > so_far[:-1] + 1)
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(order)])) if len(order) else np.zeros(1)
    return order, starts.astype(np.int64)


def _latest_so_far(groups: Numbers, lasts: Numbers) -> Numbers:
    """For each row the latest moment of its group up to it; groups are numbered from 0 on, one behind the other.

    Moments become ranks, so that those of the next group can all be made greater without becoming too great for a number.
    """
    by_rank = np.argsort(lasts, kind="stable")
    rank = np.empty_like(by_rank)
    rank[by_rank] = np.arange(len(lasts))
    highest = np.maximum.accumulate(groups * len(lasts) + rank)
    latest: Numbers = lasts[by_rank[highest - groups * len(lasts)]]
    return latest
