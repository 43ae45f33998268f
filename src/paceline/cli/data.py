"""`paceline data`: get the data of built-in tasks, make it ready, and bring it to a cluster."""

import click

from paceline.cli.data_fetch import fetch
from paceline.cli.data_prepare import prepare
from paceline.cli.data_shard import shard, verify
from paceline.cli.data_tokens import tokens
from paceline.cli.data_upload import upload
from paceline.cli.options import common_options
from paceline.cli.session import Session


@click.group("data")
@common_options
def data(session: Session) -> None:
    """Get the data of built-in tasks, make it ready, and bring it to a cluster."""


data.add_command(fetch)
data.add_command(prepare)
data.add_command(shard)
data.add_command(verify)
data.add_command(tokens)
data.add_command(upload)
