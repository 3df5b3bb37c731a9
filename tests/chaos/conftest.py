"""A place and a seed for every chaos test; the seed and what replays it are printed."""

from __future__ import annotations

import os
import random

import chaos_job
import known_truth
import pytest
import timed_job
from known_truth import Site
from moments import KILLS
from pyspark import cloudpickle

SEED = "PENSTOCK_CHAOS_SEED"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def seed(request):
    """From the environment, or drawn; shown when the test fails (or with -s)."""
    value = int(os.environ.get(SEED) or random.SystemRandom().randrange(1_000_000))
    print(f"\nreplay: {SEED}={value} PENSTOCK_CHAOS_KILLS={KILLS} python -m pytest {request.node.nodeid}")
    return value


@pytest.fixture(autouse=True, scope="module")
def by_value():
    """User code in test modules is sent to workers by value, as it is from a script."""
    for module in (chaos_job, known_truth, timed_job):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (chaos_job, known_truth, timed_job):
        cloudpickle.unregister_pickle_by_value(module)
