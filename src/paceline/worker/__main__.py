"""`torchrun … -m paceline.worker --config config.yaml`: train as one of the processes that torchrun started.

Also `python -m paceline.worker`: then as the only one. A command that lives in the worker's room because
that is its name; it joins the command line, which has no torch, to the sides that have.
"""

from paceline.cli.under_torchrun import main
from paceline.config.world import World
from paceline.transport.meeting_place import MeetingPlace
from paceline.worker.kernel import die_with_parent
from paceline.worker.torchrun_follower import follow
from paceline.worker.torchrun_leader import Leader


class _Roles:
    def lead(self, world: World, *, timeout_s: float) -> Leader:
        _end_with_torchrun(world)
        return Leader(MeetingPlace.enter(world, timeout_s=timeout_s))

    def follow(self, world: World, *, timeout_s: float) -> int:
        _end_with_torchrun(world)
        return follow(MeetingPlace.enter(world, timeout_s=timeout_s))


def _end_with_torchrun(world: World) -> None:
    """A torchrun that is killed cannot end its ranks any more; the kernel does."""
    if world.has_agent:
        die_with_parent()


if __name__ == "__main__":
    main(_Roles())
