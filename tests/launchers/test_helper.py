"""Errors keep their code and exit code on the way from another process."""

import pytest

from paceline.core.errors import ConfigError, ExitCode, NotReadyError, PacelineError, Problem
from paceline.launchers.json_subprocess import rebuild_error


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        ("E305", PacelineError, ExitCode.TRAINING_FAILED),
        ("E203", NotReadyError, ExitCode.NOT_READY),
        ("E107", ConfigError, ExitCode.BAD_CONFIG),
    ],
)
def test_an_error_is_what_it_was_there(code: str, kind: type[PacelineError], exit_code: ExitCode) -> None:
    paceline_error = rebuild_error([Problem("it failed", "fix it", code=code)])
    assert type(paceline_error) is kind
    assert paceline_error.exit_code is exit_code
    assert [problem.code for problem in paceline_error.problems] == [code]
