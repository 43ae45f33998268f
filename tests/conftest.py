"""Fixtures of all tests: one warm helper process per session, and a clean torch after each test."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from hypothesis import settings
from tests.fixtures.order import is_fast, slow_first
from tests.fixtures.wording import Wording

from paceline.launchers.local import LocalLauncher

ROOT = Path(__file__).parent.parent
# A busy machine is no bug: how long an example takes is not asserted.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# A shell's background jobs ignore Ctrl-C, and nohup ignores SIGHUP: what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite golden files instead of comparing")


def pytest_itemcollected(item: pytest.Item) -> None:
    if not is_fast(item.nodeid.partition("::")[0]):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:  # a single process ends when it ends, and tells rooms in their order
        items[:] = slow_first(items, lambda item: item.nodeid.partition("::")[0], workers)


@pytest.fixture(scope="session")
def launcher() -> Iterator[LocalLauncher]:
    """Starts worker processes; torch is imported once for all tests that share it."""
    with chdir(ROOT):  # the helper imports `tests.fixtures.tasks.user_tasks:…` from where it was started
        warm = LocalLauncher()
    with warm:
        yield warm


@pytest.fixture
def wording(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wording]:
    """Compares sentences with the golden file of the test's folder; see tests/fixtures/wording.py."""
    compared = Wording(request.node.nodeid, tmp_path, rewrite=request.config.getoption("--rewrite"))
    failed_before = request.session.testsfailed
    yield compared
    if request.session.testsfailed == failed_before:
        compared.finish()


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    """Virtual runs set torch's default dtype, as a worker does for its whole process."""
    yield
    if "torch" in sys.modules:
        import torch

        torch.set_default_dtype(torch.float32)
