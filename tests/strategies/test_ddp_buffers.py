"""ddp: all ranks end with the same batch-norm statistics, and with those of ssgd."""

from pathlib import Path

from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Transport
from paceline.worker.replay.schedule import replay


def test_statistics_are_averaged_in_ddp_as_in_ssgd(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("ddp", task_options={"batch_norm": True}, transport=Transport.GLOO)
    ddp = real(plan, tmp_path / "ddp", launcher)
    ssgd = real(small_plan("ssgd", task_options={"batch_norm": True}), tmp_path / "ssgd", launcher)
    assert ddp.sha256 == ssgd.sha256  # `sha256` also says that all of its ranks agree
    assert replay(plan, ddp.history, ddp.sha256).is_equal
