"""`torchrun … -m paceline.worker --config config.yaml`: train as one of the processes that torchrun started.

Also `python -m paceline.worker`: then as the only one. A command that lives in the worker's room because
that is its name; it joins the command line, which has no torch, to the sides that have.
"""

from paceline.cli.under_torchrun import main
from paceline.config.world import World
from paceline.transport.meeting_place import MeetingPlace
from paceline.worker.torchrun_follower import follow
from paceline.worker.torchrun_leader import Leader


class _Roles:
    def lead(self, world: World, *, timeout_s: float) -> Leader:
        return Leader(MeetingPlace.enter(world, timeout_s=timeout_s))

    def follow(self, world: World, *, timeout_s: float) -> int:
        return follow(MeetingPlace.enter(world, timeout_s=timeout_s))


if __name__ == "__main__":
    main(_Roles())
