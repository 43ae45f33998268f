"""How are workers started by Ray? As actors on reserved room; the launcher has the folder and the last word.

Ray schedules and supervises; what workers do, and how they agree, is as without it. When one is lost, all
are ended, and may be started anew from the newest checkpoint (`restarts`); in an elastic run it is replaced,
and the others go on (ray_elastic.py). This process never imports torch.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from paceline.checkpoints.catalog import read_complete
from paceline.core.errors import NotReadyError
from paceline.launchers.local import Message, RunOutcome, Supervisor
from paceline.launchers.ray.client import RayClient, StopRequest, connect
from paceline.launchers.ray.elastic import ElasticGroup
from paceline.launchers.ray.group import Group, RunDirWriter
from paceline.launchers.ray.resources import check_nodes, cpus_for_own_ray
from paceline.launchers.supervision import Failure
from paceline.plan.plan import Plan


def check_capacity(plans: Sequence[Plan]) -> None:
    """NotReadyError unless the cluster has room for each of them; what is started here always has."""
    elsewhere = [plan for plan in plans if plan.ray is not None and plan.ray.address != "local"]
    for address in {plan.ray.address for plan in elsewhere if plan.ray is not None}:
        with closing(connect(address, num_cpus=0)) as ray:
            nodes = ray.nodes()
        for plan in elsewhere:
            if plan.ray is not None and plan.ray.address == address:
                check_nodes(plan, address, nodes)


class RayLauncher:
    """Made, it is connected to a cluster that is large enough; else an error, and nothing was started."""

    def __init__(self, plan: Plan) -> None:
        assert plan.ray is not None, "the plan says where Ray is"
        # A Ray of our own pretends to have what is needed: workers share processors, as without it.
        cpus = cpus_for_own_ray(plan, len(os.sched_getaffinity(0)))
        self._wishes = StopRequest()
        self._group: Group | ElasticGroup | None = None
        self._supervisor: Supervisor | None = None
        self._ray: RayClient = connect(plan.ray.address, num_cpus=cpus)
        try:
            check_nodes(plan, plan.ray.address, self._ray.nodes())
        except NotReadyError:
            self._ray.close()
            raise

    def run(
        self,
        plan: Plan,
        run_dir: Path,
        *,
        on_message: Callable[[Message], None],
        resume_from: Path | None = None,
        supervisor: Supervisor | None = None,
    ) -> RunOutcome:
        assert plan.ray is not None, "the plan says where Ray is"
        if supervisor is not None:
            self._supervisor = supervisor
            self._group = ElasticGroup(plan, self._ray, on_message, self._wishes, supervisor)
            return self._group.run(run_dir, resume_from)
        folder, budget = RunDirWriter(plan, run_dir), plan.ray.restarts
        restarts = 0
        while True:
            self._group = group = Group(plan, self._ray, folder, on_message, self._wishes)
            clocks = (0,) * plan.num_workers
            if resume_from is not None:
                clocks = read_complete(resume_from, plan.num_workers).clocks
            ended = group.run(run_dir, resume_from, clocks)
            cause = ended.ledger.cause()
            if cause is None or not _is_loss(cause) or self._wishes.stop or restarts == budget:
                return ended
            restarts += 1
            found = folder.go_back(f"{cause.who}: {cause.what}")
            resume_from = None if found is None else found.folder
            begin = "the beginning" if found is None else found.folder.name
            text = f"{cause.what}; all start anew from {begin} (restart {restarts} of {budget})"
            on_message({"ev": "note", "text": text})

    def stop(self) -> None:
        self._wishes.stop = True
        if self._supervisor is not None:
            self._supervisor.stopping()

    def kill(self) -> None:
        """The interrupt that follows ends the run, and with it every actor."""
        if self._supervisor is not None:
            self._supervisor.cancel()

    def close(self) -> None:
        try:
            if self._group is not None:
                self._group.close()
        finally:
            self._ray.close()


def _is_loss(cause: Failure) -> bool:
    """From outside, or nobody knows: then it may go well the next time."""
    return cause.by_signal or cause.is_consequence
