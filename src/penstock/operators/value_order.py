"""Compare values of any type that Spark can order, two columns at once: numbers, texts, structs, arrays. Executors.

Null comes first and NaN last, -0.0 is 0.0, and texts and bytes are compared byte by byte. A struct is compared field by field, an array
element by element; of two arrays of which one begins with all of the other, the longer one is larger.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Signs = npt.NDArray[np.int8]
"""-1 where the left value is smaller, 1 where it is larger, 0 where both are equal."""


def compare(left: pa.Array, right: pa.Array) -> Signs:
    """Row by row, how the values of two columns of one type compare."""
    has_left, has_right = (side.is_valid().to_numpy(zero_copy_only=False) for side in (left, right))
    signs: Signs = has_left.astype(np.int8) - has_right.astype(np.int8)
    both = np.flatnonzero(has_left & has_right)
    if len(both):
        at = pa.array(both)
        signs[both] = _compare_known(left.take(at), right.take(at))
    return signs


def _compare_known(left: pa.Array, right: pa.Array) -> Signs:
    if pa.types.is_struct(left.type):
        return _structs(left, right)
    if pa.types.is_list(left.type) or pa.types.is_large_list(left.type):
        return _arrays(left, right)
    signs = _signs(pc.greater(left, right)) - _signs(pc.less(left, right))
    if pa.types.is_floating(left.type):
        left_nan, right_nan = _signs(pc.is_nan(left)), _signs(pc.is_nan(right))
        signs = np.where((left_nan | right_nan) != 0, left_nan - right_nan, signs)
    return signs


def _signs(flags: pa.Array) -> Signs:
    numbers: Signs = flags.to_numpy(zero_copy_only=False).astype(np.int8)
    return numbers


def _structs(left: pa.Array, right: pa.Array) -> Signs:
    signs = np.zeros(len(left), dtype=np.int8)
    equal = np.arange(len(left))
    for index in range(left.type.num_fields):
        at = pa.array(equal)
        found = compare(*(pc.struct_field(side, index).take(at) for side in (left, right)))
        signs[equal] = found
        equal = equal[found == 0]
        if not len(equal):
            break
    return signs


def _arrays(left: pa.Array, right: pa.Array) -> Signs:
    """In as many rounds as the longest common beginning has elements."""
    signs = np.zeros(len(left), dtype=np.int8)
    starts = [side.offsets.to_numpy()[:-1].astype(np.int64) for side in (left, right)]
    sizes = [np.diff(side.offsets.to_numpy()).astype(np.int64) for side in (left, right)]
    equal = np.arange(len(left))
    element = 0
    while len(equal):
        more = [element < size[equal] for size in sizes]
        signs[equal] = more[0].astype(np.int8) - more[1].astype(np.int8)
        equal = equal[more[0] & more[1]]
        if len(equal):
            at = [pa.array(start[equal] + element) for start in starts]
            found = compare(left.values.take(at[0]), right.values.take(at[1]))
            signs[equal] = found
            equal = equal[found == 0]
        element += 1
    return signs
