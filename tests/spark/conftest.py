"""User code in a test module is sent to workers by value, as it is from a script; tests of what reaches a job from outside share a driver."""

from __future__ import annotations

from collections.abc import Iterator

import golden_job
import ledger
import pytest
from child_driver import ChildDriver
from pyspark import cloudpickle


@pytest.fixture(autouse=True, scope="module")
def by_value(request):
    modules = [golden_job, ledger, request.module]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="session")
def child_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildDriver]:
    driver = ChildDriver(tmp_path_factory.mktemp("child-driver"))
    yield driver
    driver.kill()
