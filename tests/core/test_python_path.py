"""Where a process that an agent starts imports modules from."""

import os
from pathlib import Path

import pytest

from paceline.core import environ


def test_a_folder_is_searched_before_those_of_the_process_which_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/one", "/two"]))
    assert environ.python_path(Path("/own")).split(os.pathsep) == ["/own", "/one", "/two"]


def test_without_a_path_of_the_process_no_empty_entry_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert environ.python_path(Path("/own")) == "/own"
