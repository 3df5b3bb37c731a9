"""User code in a test module is sent to workers by value, as it is from a script."""

from __future__ import annotations

import golden_job
import ledger
import pytest
from pyspark import cloudpickle


@pytest.fixture(autouse=True, scope="module")
def by_value(request):
    modules = [golden_job, ledger, request.module]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
