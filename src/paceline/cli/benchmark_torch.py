"""`paceline benchmark torch`: plain torch, its DDP, Ray Train and modes of ours in one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.benchmark import (
    announce_turn,
    out_option,
    repeats_option,
    show_benchmark,
    with_benchmark_variables,
)
from paceline.cli.options import SettingsCommand, common_options, config_options_without
from paceline.cli.output import print_message
from paceline.comparison.benchmark.torch_layout import SETTINGS_READ
from paceline.config.keys import KEYS
from paceline.config.values import RawSetting
from paceline.core.errors import Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.comparison.benchmark.torch_layout import TorchRequest


@click.command("torch", cls=SettingsCommand)
@click.option(
    "--modes", metavar="MODE[,MODE…]", default="ssgd", show_default=True, help="Paceline modes to benchmark."
)
@click.option(
    "--launcher",
    "launchers",
    metavar="local|ray|local,ray",
    default="local,ray",
    show_default=True,
    help="Launchers for the Paceline modes.",
)
@click.option(
    "--peers",
    metavar="ddp|ray|ddp,ray",
    help="Other libraries to benchmark: torch DDP, Ray Train. [default: ddp, with --launcher ray also ray]",
)
@repeats_option
@out_option
@config_options_without(*(name for name in KEYS if name not in SETTINGS_READ))
@common_options
def torch(
    session: Session,
    flags: Sequence[RawSetting],
    modes: str,
    launchers: str,
    peers: str | None,
    repeats: int,
    out: Path,
) -> None:
    """Train one task with plain torch, torch DDP, Ray Train's TorchTrainer and Paceline modes, and compare.

    All use the same model, samples and global batch: --batch-size is the global batch, split between the
    workers. All run on CPUs, in new processes, one after another. Ray is started for each run
    (--address local), unless --address names a cluster.
    """
    from paceline.comparison.benchmark.runner import benchmark
    from paceline.comparison.benchmark.torch_layout import lay_out
    from paceline.comparison.benchmark.torch_runner import check_cluster, contenders_of
    from paceline.config.environment import probe_machine
    from paceline.launchers.local import LocalLauncher
    from paceline.training.request import count_samples

    request, found = _request(session, flags, modes, launchers, peers)
    facts = probe_machine(request.config)
    with LocalLauncher() as counter:  # only counts samples: every contender starts its own processes
        layout = lay_out(
            request, facts, config_problems=found, count=lambda config: count_samples(config, counter)
        )
        num_samples = count_samples(request.config, counter)
    folder = session.folder / out
    check_cluster(layout, folder, lambda text: print_message(session, f"        {text}"))
    contenders = contenders_of(layout, num_samples=num_samples)
    names = ", ".join(contender.title for contender in contenders)
    print_message(session, f"benchmarking {names}: {len(contenders) * repeats} runs, in {folder}")
    done = benchmark(
        contenders,
        folder,
        task=layout.alone.task,
        subject=layout.subject,
        repeats=repeats,
        seed=layout.alone.seed,
        notify=lambda coming: announce_turn(session, coming),
        note=lambda text: print_message(session, f"        {text}"),
    )
    show_benchmark(session, "benchmark.torch", done, folder)


def _request(
    session: Session, flags: Sequence[RawSetting], modes: str, launchers: str, peers: str | None
) -> "tuple[TorchRequest, list[Problem]]":
    from paceline.comparison.benchmark.torch_layout import TorchRequest
    from paceline.config.load import from_set_flags, load

    sets = from_set_flags(session.common.sets)
    settings = with_benchmark_variables([*flags, *sets.entries], list(session.variables))
    loaded = load(flags=settings, variables=session.variables, file=session.common.config)
    request = TorchRequest(
        config=loaded.config,
        modes=_listed(modes),
        launchers=_listed(launchers),
        peers=None if peers is None else _listed(peers),
    )
    return request, [*sets.problems, *loaded.problems]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
