"""`paceline image`: how does a Dockerfile become an image that works the first time?"""

import click

from paceline.cli.image_check import check
from paceline.cli.image_matrix import matrix
from paceline.cli.options import common_options
from paceline.cli.session import Session


@click.group("image")
@common_options
def image(session: Session) -> None:
    """Check a Dockerfile and its requirements for known conflicts, and mend them."""


image.add_command(check)
image.add_command(matrix)
