"""What do ranks that somebody else started say to each other before, and after, they train?

    hello/R   a rank is there: its version, host and idea of the world
    word      rank 0: the plan, and where everything is; or that nothing will come of it
    ready/R   a rank has built its task and its model, or could not
    go        rank 0: all are ready, meet now
    end/R     how a rank ended: its report, or what went wrong
    verdict   rank 0: everything is written; the exit code for all

Whatever rank 0 shows may instead be `{"over": code}`: then there is nothing to wait for any more.
"""

import platform
import socket
import traceback

import torch

from paceline import __version__
from paceline.config.world import World
from paceline.errors import (
    NoGpuError,
    PacelineError,
    PeerLostError,
    Problem,
    TorchrunError,
    VersionsDifferError,
)
from paceline.plan.catalog import Channel
from paceline.plan.codec import Json
from paceline.plan.plan import Device, Plan, Transport
from paceline.transport.meeting_place import boot_id
from paceline.worker import faults
from paceline.worker.wiring import channel_of

Message = dict[str, Json]
_FITTING = {
    Channel.ALONE: (Transport.NONE,),
    Channel.COLLECTIVE: (Transport.GLOO, Transport.NCCL),
    Channel.TORCH: (Transport.GLOO, Transport.NCCL),
    Channel.STORE: (Transport.TCP,),
    Channel.PEERS: (),
}


def hello_of(world: World) -> Message:
    return {
        "paceline": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "world_size": world.size,
        "host": socket.gethostname(),
        "boot": boot_id(),
    }


def check_hello(said: Message, rank: int, mine: Message) -> None:
    """Ranks that are not alike would train something else than they say, or wait for ever."""
    if said["world_size"] != mine["world_size"]:
        raise TorchrunError(
            [
                Problem(
                    f"WORLD_SIZE is {mine['world_size']} for rank 0, {said['world_size']} for rank {rank}",
                    "start all processes of a run with the same WORLD_SIZE; torchrun does",
                )
            ]
        )
    for what in ("paceline", "torch"):
        if said[what] != mine[what]:
            raise VersionsDifferError(
                f"rank 0 has {what} {mine[what]}, but rank {rank} on {said['host']} has {said[what]}",
                "install the same versions everywhere",
            )


def check_here(plan: Plan, world: World) -> None:
    """Can this process do its part of the plan?"""
    if world.size != plan.num_workers:
        what = f"the run has {plan.num_workers} workers, but {world.size} processes were started"
        raise TorchrunError([Problem(what, f"start {plan.num_workers}, or begin a new run")])
    channel = channel_of(plan.mode)
    if plan.transport not in _FITTING[channel]:
        usable = " or ".join(t.value for t in _FITTING[channel])
        what = f"transport {plan.transport.value} does not reach processes that somebody else started"
        hint = f"for mode {plan.mode}, use --transport {usable}" if usable else "use `paceline train`"
        raise TorchrunError([Problem(what, hint)])
    if plan.device is Device.CUDA and not torch.cuda.is_available():
        raise NoGpuError(
            f"device is cuda, but rank {world.rank} on {socket.gethostname()} has no GPU that torch can use",
            "set device to cpu, or install a torch that is built for CUDA there",
        )


def fault_of(error: BaseException, rank: int, run_dir: str) -> Message:
    """An error as rank 0 hears of it; with a traceback where it is no error of the user's."""
    if isinstance(error, RuntimeError) and not isinstance(error, PacelineError) and _is_of_a_peer(error):
        error = PeerLostError(
            f"torch lost a peer: {str(error).splitlines()[0]}",
            "another rank died, or did not answer in time; torchrun names the first that ended",
        )
    who = f"worker-{rank}"
    fault: Message = {"ev": "error", "who": who, **faults.fault_of(error, f"{run_dir}/logs/{who}.log")}
    if not isinstance(error, PacelineError):
        fault["trace"] = "".join(traceback.format_exception(error))
    return fault


def _is_of_a_peer(error: RuntimeError) -> bool:
    """torch's DDP raises what gloo and NCCL say, as it is."""
    return any(word in str(error) for word in ("gloo/transport", "NCCL", "Connection closed by peer"))
