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
from paceline.cli.options import common_options, config_options_without
from paceline.cli.output import print_message
from paceline.comparison.benchmark.torch_layout import SETTINGS_READ
from paceline.config.keys import KEYS
from paceline.config.values import RawSetting
from paceline.core.errors import Problem
from paceline.training.session import Session

if TYPE_CHECKING:
    from paceline.comparison.benchmark.torch_layout import TorchRequest


@click.command("torch")
@click.option(
    "--modes", metavar="MODE[,MODE…]", default="ssgd", show_default=True, help="Modes of ours that take part."
)
@click.option(
    "--launcher",
    "launchers",
    metavar="local|ray|local,ray",
    default="local,ray",
    show_default=True,
    help="What starts ours.",
)
@click.option(
    "--peers",
    metavar="ddp|ray|ddp,ray",
    help="Others that take part: torch DDP, Ray Train. [default: ddp, and ray where ours are on Ray]",
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
    """Train one task by plain torch alone, by its DDP, by Ray Train's TorchTrainer and by modes of ours.

    Same model, same samples, same global batch: --batch-size is what a step takes in all, and each worker
    takes its share. Everybody runs on CPUs, in new processes that are started for it, one after another.
    Ray is started for each run (--address local), or is the cluster at --address.
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
        layout = lay_out(request, facts, found=found, count=lambda config: count_samples(config, counter))
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
        tell=lambda coming: announce_turn(session, coming),
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
