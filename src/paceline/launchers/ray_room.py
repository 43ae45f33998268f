"""How does a run get room on a Ray cluster? It is reserved as a whole, before anybody is started."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.clock import SystemClock, monotonic_s
from paceline.errors import TrainingError
from paceline.launchers.local import Message
from paceline.launchers.ray_door import Ray, Reservation
from paceline.launchers.ray_needs import Bundle, fits, placement_of, table
from paceline.plan.plan import Plan

PULSE_S = 0.25
START_S = 120.0  # for a process to start on a node, and to import torch
_SHORTEST_S = 0.005  # between two looks, at first: on a cluster with room it is a matter of milliseconds
PATIENCE_S = 2.0  # before it is said that one waits


@dataclass(slots=True)
class Wishes:
    """What a signal asks for; the launcher looks when it may act."""

    stop: bool = False


def reserve(
    plan: Plan, ray: Ray, bundles: Sequence[Bundle], wishes: Wishes, tell: Callable[[Message], None]
) -> Reservation:
    """Once it is free. What others use is waited for; what is not there any more, only for a while."""
    nodes = ray.nodes()
    placement = placement_of(plan, nodes)
    place = ray.reserve([bundle.as_ray() for bundle in bundles], placement.value.upper())
    began_s, fitted_s, is_said, pause_s = monotonic_s(), monotonic_s(), False, _SHORTEST_S
    while not place.is_there():
        SystemClock().sleep(pause_s)
        pause_s = min(PULSE_S, 2 * pause_s)
        if wishes.stop:
            ray.release(place)
            raise KeyboardInterrupt
        nodes = ray.nodes()
        if fits(bundles, nodes, placement):
            fitted_s = monotonic_s()
        elif monotonic_s() - fitted_s > plan.timeout_s:
            ray.release(place)
            raise TrainingError(
                "what is left of the Ray cluster is too small\n" + table(bundles, nodes, placement),
                "add nodes, then go on with  paceline train --resume RUN",
            )
        if not is_said and monotonic_s() - began_s > PATIENCE_S:
            is_said = True
            tell({"ev": "note", "text": "waiting for room on the Ray cluster: others use it now"})
    return place
