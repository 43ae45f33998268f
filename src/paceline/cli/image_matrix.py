"""`paceline image matrix`: the table of torch with CUDA, Python and sister packages, shown or refreshed."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session
from paceline.errors import ImageWishError, Problem

if TYPE_CHECKING:
    from paceline.images.matrix import TorchRow


@click.command("matrix")
@click.option(
    "--refresh", is_flag=True, help="Ask the package index that pip and uv are configured for. Minutes."
)
@click.option(
    "--only-new", is_flag=True, help="With --refresh: ask for versions that are not known yet alone."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --refresh: where to; wheels.json is written beside it. [default: the package's own files]",
)
@common_options
def matrix(session: Session, *, refresh: bool, only_new: bool, out: Path | None) -> None:
    """Show what is known from the wheels' metadata, with its date. --refresh reads the index again, for this
    table and for the table of wheels (wheels.json). A version that is in neither is not judged."""
    from importlib.resources import files

    from paceline.images.bases import catalog
    from paceline.images.matrix import matrix as known
    from paceline.images.matrix import to_json, wheels

    found = known()
    if refresh:
        from datetime import UTC, datetime

        from paceline import clock
        from paceline.app.image_matrix import refresh as ask_index
        from paceline.app.image_matrix import refresh_wheels, write_matrix, write_wheels

        today = datetime.fromtimestamp(clock.unix_now_s(), UTC).date()
        found = ask_index(today, found, only_new=only_new, tell=lambda line: say(session, line))
        made = refresh_wheels(
            today, wheels(), found, torch_index=catalog().index, tell=lambda line: say(session, line)
        )
        package = Path(str(files("paceline.images").joinpath("data/matrix.json")))
        target = package if out is None else session.folder / out
        write_matrix(found, target)
        beside = target.with_name("wheels.json")
        write_wheels(made, beside)
        say(session, f"wrote {target} and {beside}")
    elif only_new or out is not None:
        raise ImageWishError(
            [Problem("--only-new and --out are for --refresh", "add --refresh", "--refresh")]
        )
    lines = [f"from wheel metadata of {found.dated}", _HEAD, *map(_line, found.torch)]
    emit(session, "image.matrix", to_json(found), lines)


_WIDTHS = (9, 13, 11, 12, 9, 13, 10)
_HEAD = "torch    Python       CUDA       cuDNN       NCCL     torchvision  torchaudio"


def _line(row: "TorchRow") -> str:
    parts = (row.cuda, row.cudnn, row.nccl, row.torchvision, row.torchaudio)
    cells = [str(row.torch), f"{row.pythons[0]} to {row.pythons[-1]}", *(str(one or "–") for one in parts)]
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
