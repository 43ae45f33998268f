"""`paceline benchmark torch`: plain torch, its DDP, Ray Train and modes of ours in one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.benchmark.settings import READ
from paceline.cli.benchmark_options import behind_flags, out_option, repeats_option
from paceline.cli.benchmark_table import show, tell
from paceline.cli.options import common_options, config_options_without
from paceline.cli.output import say
from paceline.cli.session import Session
from paceline.config.keys import KEYS
from paceline.config.written import Written
from paceline.errors import Problem

if TYPE_CHECKING:
    from paceline.app.benchmark_plan import TorchRequest


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
@config_options_without(*(name for name in KEYS if name not in READ))
@common_options
def torch(
    session: Session,
    flags: Sequence[Written],
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
    from paceline.app.benchmark import benchmark
    from paceline.app.benchmark_plan import lay_out
    from paceline.app.benchmark_torch import check_cluster, contenders_of
    from paceline.app.train import count_samples, warm_up
    from paceline.config.facts import look_up_facts

    request, found = _request(session, flags, modes, launchers, peers)
    facts = look_up_facts(request.config)
    with warm_up() as warm:  # only to count: whoever trains starts cold
        layout = lay_out(request, facts, found=found, count=lambda config: count_samples(config, warm))
        num_samples = count_samples(request.config, warm)
    folder = session.folder / out
    check_cluster(layout, folder, lambda text: say(session, f"        {text}"))
    contenders = contenders_of(layout, num_samples=num_samples)
    names = ", ".join(contender.title for contender in contenders)
    say(session, f"benchmarking {names}: {len(contenders) * repeats} runs, in {folder}")
    done = benchmark(
        contenders,
        folder,
        task=layout.alone.task,
        subject=layout.subject,
        repeats=repeats,
        seed=layout.alone.seed,
        tell=lambda coming: tell(session, coming),
        note=lambda text: say(session, f"        {text}"),
    )
    show(session, "benchmark.torch", done, folder)


def _request(
    session: Session, flags: Sequence[Written], modes: str, launchers: str, peers: str | None
) -> "tuple[TorchRequest, list[Problem]]":
    from paceline.app.benchmark_plan import TorchRequest
    from paceline.config.load import load
    from paceline.config.sources import from_sets

    sets = from_sets(session.common.sets)
    said = behind_flags([*flags, *sets.entries], list(session.variables))
    loaded = load(flags=said, variables=session.variables, file=session.common.config)
    request = TorchRequest(
        config=loaded.config,
        modes=_listed(modes),
        launchers=_listed(launchers),
        peers=None if peers is None else _listed(peers),
    )
    return request, [*sets.problems, *loaded.problems]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
