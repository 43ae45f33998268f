"""Session fixtures for a real container engine, in a folder of the session, with its variables set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.containers.engine import WHY_NOT, EngineHere, engine_in


@pytest.fixture(scope="session")
def _engine_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHere]:
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    with engine_in(tmp_path_factory.mktemp("engine")) as here:
        yield here


@pytest.fixture
def here(_engine_of_session: EngineHere, monkeypatch: pytest.MonkeyPatch) -> EngineHere:
    for name, value in _engine_of_session.variables.items():
        monkeypatch.setenv(name, value)
    return _engine_of_session


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder
