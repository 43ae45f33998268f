"""What do tests of the Python API share? Helpers that have torch already; their programs start as ever."""

from types import SimpleNamespace

import pytest
from tests.fixtures.warm_helpers import warm_helpers


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.launchers.local.sys", SimpleNamespace(executable=warm_helpers().python))
