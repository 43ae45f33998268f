"""How long does federated averaging take? Round after round of drawn workers, the others wait.

Who is drawn, and for how many steps, is sync/clients.py, as the workers
themselves work it out.
"""

import numpy as np

from paceline.simulate.costs import in_ns
from paceline.simulate.durations import Nanoseconds, matrix, starts_ns
from paceline.simulate.prediction import Outline, Trace, ring_bytes
from paceline.simulate.profile import Profile
from paceline.simulate.ways import Rounds
from paceline.sync.clients import Rounds as Drawing
from paceline.sync.clients import clients_per_round


def rounds(profile: Profile, way: Rounds, *, steps: int, seed: int) -> Outline:
    workers, costs = profile.num_workers, profile.costs
    compute = matrix(profile, seed, steps)
    meeting_ns = in_ns(costs.collective.transfer_s(ring_bytes(profile)) + profile.all_wake_s)
    ends, clients = _ends(profile, way, compute, seed, meeting_ns)
    starts = starts_ns(profile)
    busy_ns = int(compute.sum()) + in_ns(costs.apply_s) * compute.size
    met_ns = len(ends) * meeting_ns
    return Outline(
        total_ns=ends[-1] - int(starts.min()),
        compute_ns=int(compute.sum()),
        wait_ns=workers * (ends[-1] - met_ns) - int(starts.sum()) - busy_ns,
        steps=(steps,) * workers,
        samples=steps * profile.global_batch,
        syncs=len(ends),
        bytes_each_way=ring_bytes(profile) * workers * len(ends),
        trace=Trace(np.concatenate(clients), np.repeat(ends, [len(drawn) for drawn in clients])),
    )


def _ends(
    profile: Profile, way: Rounds, compute: Nanoseconds, seed: int, meeting_ns: int
) -> tuple[list[int], list[Nanoseconds]]:
    """(when each round is over, who was drawn for it)."""
    workers, steps = compute.shape
    done_by = np.pad(np.cumsum(compute + in_ns(profile.costs.apply_s), axis=1), ((0, 0), (1, 0)))
    count = clients_per_round(way.part, workers)
    drawing = Drawing(seed=seed, num_workers=workers, steps=steps, every=way.every, count=count)
    ready_ns = starts_ns(profile).copy()  # everybody takes part in every meeting
    ends, clients = list[int](), list[Nanoseconds]()
    while drawn := drawing.current():
        for rank, more in drawn.items():
            done = drawing.done[rank]
            ready_ns[rank] += done_by[rank, done + more] - done_by[rank, done]
        ends.append(int(ready_ns.max()) + meeting_ns)
        clients.append(np.array(list(drawn)))
        ready_ns[:] = ends[-1]
        drawing.finish()
    return ends, clients
