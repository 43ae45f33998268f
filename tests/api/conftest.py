"""Fixtures of the Python API's tests: programs start as usual, with helpers that have imported torch."""

from types import SimpleNamespace

import pytest
from tests.fixtures.processes.warm_helpers import warm_helpers


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.launchers.local.sys", SimpleNamespace(executable=warm_helpers().python))
