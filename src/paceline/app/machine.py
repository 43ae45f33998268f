"""What machine is this? For reports: a time means little without it."""

import os
import platform
from importlib import metadata
from pathlib import Path

from paceline.config.facts import look_up_facts
from paceline.config.train_config import TrainConfig
from paceline.report.comparison import Machine


def look_at_machine() -> Machine:
    return Machine(
        cpu=_cpu(),
        processors=look_up_facts(TrainConfig()).cpu_count,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=metadata.version("torch"),
        load=round(os.getloadavg()[0], 2),
    )


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(named, platform.machine())
