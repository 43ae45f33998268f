"""`paceline image`: how does a Dockerfile become an image that works the first time?"""

import click

from paceline.cli.image_build import build
from paceline.cli.image_check import check
from paceline.cli.image_matrix import matrix
from paceline.cli.image_push import push
from paceline.cli.image_test import test
from paceline.cli.options import common_options
from paceline.cli.session import Session


@click.group("image")
@common_options
def image(session: Session) -> None:
    """Check a Dockerfile for known conflicts, build its image, look into it, and push it."""


image.add_command(check)
image.add_command(build)
image.add_command(test)
image.add_command(push)
image.add_command(matrix)
