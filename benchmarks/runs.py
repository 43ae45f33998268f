"""Run one mode for real, as `paceline train` would, on work that is equal for all modes."""

import tempfile
from pathlib import Path

from paceline.config.environment import Facts, probe_machine
from paceline.config.train_config import TrainConfig
from paceline.events.read import History, read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES
from paceline.plan.plan import Plan
from paceline.plan.resolve import config_for_mode, resolve
from paceline.simulate.strategy_models import PREDICTABLE_MODES
from paceline.training.progress import SilentWatcher
from paceline.training.run import train

# single is no cluster; ddp and ps wait for all at every step, as ssgd does, and cost no less.
TRIED = tuple(mode for mode in MODES if mode in PREDICTABLE_MODES - {"single", "ddp", "ps"})


def processors() -> int:
    return probe_machine(TrainConfig()).cpu_count


def plan_for(mode: str, config: TrainConfig) -> Plan:
    """The config under this mode; settings that the mode does not read are left out."""
    return resolve(config_for_mode(config, mode), Facts())


def really_run(launcher: LocalLauncher, plan: Plan) -> History:
    """Run to the end; KeyboardInterrupt if the run stopped early, as after a first Ctrl-C."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(plan, Path(folder), SilentWatcher(), warm=launcher)
        if result["stopped_early"]:
            raise KeyboardInterrupt
        return read_history(Path(folder) / "events.jsonl")
