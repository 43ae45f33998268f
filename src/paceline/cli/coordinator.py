"""`paceline coordinator`: the replicated control plane, its nodes and their state."""

import click

from paceline.cli import coordinator_change, coordinator_offline, coordinator_start, coordinator_status
from paceline.cli.options import common_options
from paceline.cli.session import Session


class _InOrder(click.Group):
    """As a person would meet them, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("coordinator", cls=_InOrder)
@common_options
def coordinator(session: Session) -> None:
    """Run and look after the replicated coordinator.

    A few nodes agree on who is in a run, which checkpoints exist and what was
    asked for. `up` is the shortest way to a cluster on this machine.
    """


for command in (
    coordinator_start.up,
    coordinator_start.start,
    coordinator_status.status,
    coordinator_change.add,
    coordinator_change.remove,
    coordinator_change.step_down,
    coordinator_change.snapshot,
    coordinator_change.kill,
    coordinator_offline.verify,
    coordinator_offline.init_pki,
):
    coordinator.add_command(command)
