"""How does a benchmark run one mode for real? As `paceline train` would, on work that is equal for all."""

import tempfile
from pathlib import Path

from paceline.app.progress import SilentWatcher
from paceline.app.train import train
from paceline.config.facts import Facts, look_up_facts
from paceline.config.train_config import TrainConfig
from paceline.events.read import History, read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES
from paceline.plan.per_mode import config_for
from paceline.plan.plan import Plan
from paceline.plan.resolve import resolve
from paceline.simulate.ways import KNOWN

# single is no cluster; ddp and ps wait for all at every step, as ssgd does, and cost no less.
TRIED = tuple(mode for mode in MODES if mode in KNOWN - {"single", "ddp", "ps"})


def processors() -> int:
    return look_up_facts(TrainConfig()).cpu_count


def plan_for(mode: str, config: TrainConfig) -> Plan:
    """The config under this mode; settings that the mode does not read are left out."""
    return resolve(config_for(config, mode), Facts())


def really_run(launcher: LocalLauncher, plan: Plan) -> History:
    """To the end; a first Ctrl-C only asks the run to stop, and half a run says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(plan, Path(folder), SilentWatcher(), warm=launcher)
        if result["stopped_early"]:
            raise KeyboardInterrupt
        return read_history(Path(folder) / "events.jsonl")
