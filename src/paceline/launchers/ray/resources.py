"""Resource check of a plan against a Ray cluster, as a table.

The total resources of the nodes count: a run waits for resources that are in use, but not for resources that
no node has.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.errors import NotReadyError
from paceline.plan.catalog import server_names, spans_hosts
from paceline.plan.plan import Device, Placement, Plan, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    name: str
    cpus: float
    gpus: float = 0.0
    id: str = ""  # Ray's


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Resources of one participant."""

    who: str
    cpus: int
    gpus: int = 0

    def as_ray(self) -> dict[str, float]:
        return {"CPU": float(self.cpus), **({"GPU": float(self.gpus)} if self.gpus else {})}


def has_server(plan: Plan) -> bool:
    return plan.transport is Transport.TCP and (plan.elastic is None or bool(server_names(plan)))


def bundles_of(plan: Plan) -> list[Bundle]:
    """The server first: where bundles are spread it is alone as long as there are nodes."""
    gpus = 1 if plan.device is Device.CUDA else 0
    names = server_names(plan) if plan.elastic is not None else ("server-0",) * has_server(plan)
    servers = [Bundle(who=name, cpus=plan.threads_per_worker) for name in names]
    ranks = range(plan.num_workers if plan.elastic is None else plan.elastic.workers)
    return servers + [Bundle(who=f"worker-{r}", cpus=plan.threads_per_worker, gpus=gpus) for r in ranks]


def cpus_for_own_ray(plan: Plan, processors: int) -> int:
    """How many CPUs a Ray has that is started for this plan: it may also grow to its largest."""
    more = 0 if plan.elastic is None else plan.elastic.max_workers - plan.elastic.workers
    needed = sum(bundle.cpus for bundle in bundles_of(plan)) + more * plan.threads_per_worker
    return max(processors, needed)


def is_own_address(address: str) -> bool:
    """Whether this is an address of this machine: a process can only listen on local addresses."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True


def placement_of(plan: Plan, nodes: Sequence[Node]) -> Placement:
    placement = None if plan.ray is None else plan.ray.placement
    if placement is not None:
        return placement
    is_spread = has_server(plan) or spans_hosts(plan)
    return Placement.SPREAD if is_spread and len(nodes) > 1 else Placement.PACK


def fits(bundles: Sequence[Bundle], nodes: Sequence[Node], placement: Placement) -> bool:
    """Whether the bundles fit into idle nodes; placed largest first, each where it fits."""
    if placement is Placement.STRICT_PACK:
        cpus = sum(b.cpus for b in bundles)
        gpus = sum(b.gpus for b in bundles)
        return any(n.cpus >= cpus and n.gpus >= gpus for n in nodes)
    left = [[node.cpus, node.gpus] for node in nodes]
    for bundle in sorted(bundles, key=lambda b: (-b.gpus, -b.cpus)):
        # Without a GPU request, nodes without GPUs first.
        rooms = [room for room in left if room[0] >= bundle.cpus and room[1] >= bundle.gpus]
        if not rooms:
            return False
        room = min(rooms, key=lambda r: (r[1], r[0]))
        room[0] -= bundle.cpus
        room[1] -= bundle.gpus
        if placement is Placement.STRICT_SPREAD:
            left.remove(room)
    return True


def check_nodes(plan: Plan, address: str, nodes: Sequence[Node]) -> None:
    """NotReadyError unless the plan can run there."""
    bundles = bundles_of(plan)
    if spans_hosts(plan):  # the others start when there is room
        assert plan.elastic is not None, "only elastic runs span hosts"
        bundles = bundles[: len(server_names(plan)) + plan.elastic.min_workers]
    placement = placement_of(plan, nodes)
    if not fits(bundles, nodes, placement):
        raise NotReadyError(
            f"the Ray at {address} is too small\n" + capacity_table(bundles, nodes, placement),
            "use fewer workers, --threads-per-worker 1 or another --placement, or add nodes",
        )
    is_bound = plan.elastic is not None and not spans_hosts(plan)
    elsewhere = [] if not is_bound else [node.name for node in nodes if not is_own_address(node.name)]
    if elsewhere:
        raise NotReadyError(
            f"the Ray at {address} has nodes on other machines, {', '.join(elsewhere[:8])},"
            f" but elastic workers of mode {plan.mode} with transport {plan.transport.value} share memory or"
            " the run folder of this one",
            "use another elastic mode, with --transport tcp; or --restarts 3 instead of --elastic: after a"
            " loss all workers resume from the newest checkpoint",
        )


def capacity_table(bundles: Sequence[Bundle], nodes: Sequence[Node], placement: Placement) -> str:
    """Table of required and available resources."""
    rows = [
        ("", "CPU", "GPU"),
        (f"needs, {placement.value}", *_shown(bundles)),
        *((f"  {b.who}", f"{b.cpus}", f"{b.gpus}") for b in bundles[:8]),
        *([(f"  and {len(bundles) - 8} more", "", "")] if len(bundles) > 8 else []),
        (f"has, {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}", *_shown(nodes)),
        *((f"  {n.name}", f"{n.cpus:g}", f"{n.gpus:g}") for n in nodes[:8]),
        *([(f"  and {len(nodes) - 8} more", "", "")] if len(nodes) > 8 else []),
    ]
    widest = max(len(row[0]) for row in rows)
    return "\n".join(f"{name:{widest}}  {cpu:>6}  {gpu:>5}".rstrip() for name, cpu, gpu in rows)


def _shown(rows: Sequence[Bundle] | Sequence[Node]) -> tuple[str, str]:
    return f"{sum(row.cpus for row in rows):g}", f"{sum(row.gpus for row in rows):g}"
