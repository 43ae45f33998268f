"""E: elastic averaging, workers tied to a centre by springs."""

import torch
from torch import Tensor

from paceline.laws.lab import RANDOM_SPEEDS, Finding, Lab, Law, bit_equal, run
from paceline.laws.witness import Witness
from paceline.plan.plan import OptimizerChoice, Plan, StrategyOptions
from paceline.strategies.port import ServerSide
from paceline.strategies.server_updates import Exchange
from paceline.sync.assignment import WorkUnit
from paceline.sync.samples import SampleStream, slice_of
from paceline.transport.ports import Slots
from paceline.worker.participant import state_hash
from paceline.worker.wiring import build_task, set_up_torch, strategy_class

PULLED = StrategyOptions(sync_every=4, elasticity=0.9)
INDEPENDENT = StrategyOptions(sync_every=4, elasticity=0.0)


def e1_an_exchange_loses_nothing(lab: Lab) -> Finding:
    """Over a whole run: what the workers gave away, pushed minus received, is how far the centre moved."""
    plan = lab.plan(steps=14, strategy=PULLED, stragglers=RANDOM_SPEEDS)
    witness = Witness.of(plan.num_workers)
    slots_of = dict[int, Slots]()
    pushed = dict[int, Tensor]()
    given = torch.zeros(0, dtype=torch.float64)
    first = torch.zeros(0, dtype=torch.float64)

    def on_pull(rank: int, slots: Slots) -> None:
        nonlocal given, first
        if not slots_of:
            first = slots.parameters.clone()
            given = torch.zeros_like(slots.parameters)
        slots_of[rank] = slots
        if rank in pushed:
            given += pushed.pop(rank) - slots.parameters

    def on_push(rank: int) -> None:
        pushed[rank] = slots_of[rank].gradients.clone()

    witness.on_pull = on_pull
    witness.on_push = on_push
    done = run(plan, wrap_store=witness.wrap)
    for rank, vector in pushed.items():  # after its last exchange a worker is let go and pulls no more
        given += vector - slots_of[rank].parameters
    assert done.server is not None, "easgd has a centre"
    end = done.server.arena.layout.tail_start
    away = done.server.arena.state - first - given
    moved = float((done.server.arena.state - first)[:end].abs().max())
    worst = float(away[:end].abs().max())
    exchanges = sum(row.op == "apply" for row in done.history.server)
    return Finding(
        worst <= 1e-12 and moved > 1e-6,
        f"{exchanges} exchanges; the centre moved by {moved:.2g}, all but {worst:.1e} from workers",
    )


def e2_without_elasticity_everyone_is_alone(lab: Lab) -> Finding:
    momentum = OptimizerChoice(name="momentum", lr=0.1)
    plan = lab.plan(steps=14, strategy=INDEPENDENT, stragglers=RANDOM_SPEEDS, optimizer=momentum)
    done = run(plan)
    shares = {rank: [row.position for row in rows] for rank, rows in done.history.steps.items()}
    different = [
        rank
        for rank, positions in shares.items()
        if state_hash(_alone(plan, positions)) != state_hash(done.replicas[rank].arena.named_state())
    ]
    centre_moved = state_hash(done.final_state()) != state_hash(_alone(plan, []))
    once = sorted(p for own in shares.values() for p in own) == list(range(plan.total_gradients))
    counts = {rank: len(positions) for rank, positions in sorted(shares.items())}
    return Finding(
        not different and not centre_moved and once,
        f"steps by worker {counts}; every work unit once: {once}; different from torch alone: {different}; "
        f"the centre moved: {centre_moved}",
    )


def e3_consensus_is_a_fixed_point(lab: Lab) -> Finding:
    """In a run in which no worker learns, and in one exchange."""
    at_rest = lab.plan(strategy=PULLED, optimizer=OptimizerChoice(name="sgd", lr=0.0))
    done = run(at_rest)
    hashes = bit_equal(
        state_hash(done.final_state()), state_hash(_alone(at_rest, [])), of="centre before, after"
    )
    centre = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    after, answer = _swapped(_exchange(lab), centre, centre)
    still = torch.equal(after, centre) and torch.equal(answer, centre)
    return Finding(hashes.ok and still, f"{hashes.measured}; an exchange of equals changes nothing: {still}")


def e4_the_sum_does_not_depend_on_the_order(lab: Lab) -> Finding:
    """The centre itself does: the later worker meets a centre that has moved."""
    rng = torch.Generator().manual_seed(5)
    centre, first, other = (torch.randn(64, dtype=torch.float64, generator=rng) for _ in range(3))
    exchange = _exchange(lab)
    between, one_first = _swapped(exchange, centre, first)
    end, other_second = _swapped(exchange, between, other)
    between, other_first = _swapped(exchange, centre, other)
    turned, one_second = _swapped(exchange, between, first)
    before = centre + first + other
    sums = [end + one_first + other_second, turned + other_first + one_second]
    worst = max(float((total - before).abs().max()) for total in sums)
    difference = float((end - turned).abs().max())
    return Finding(
        worst <= 1e-12 and difference > 1e-3,
        f"the total changes by at most {worst:.1e}; the centres of the two orders differ by {difference:.2g}",
    )


def _exchange(lab: Lab) -> Exchange:
    plan = lab.plan(strategy=PULLED)
    side: type[ServerSide] = strategy_class(plan.mode)
    exchange = side.exchange(plan)
    assert exchange is not None, "elastic averaging is an exchange"
    return exchange


def _swapped(exchange: Exchange, centre: Tensor, pushed: Tensor) -> tuple[Tensor, Tensor]:
    """(the centre, the worker) after the exchange; the vectors given stay as they are."""
    moved = centre.clone()
    answer = torch.empty_like(centre)
    exchange.swap(moved, pushed.clone(), answer)
    return moved, answer


def _alone(plan: Plan, positions: list[int]) -> dict[str, Tensor]:
    """What torch computes on these shares, one after another, in a single worker."""
    set_up_torch(plan)
    task = build_task(plan)
    torch.manual_seed(plan.seed)
    model = task.model()
    samples = task.samples()
    stream = SampleStream(num_samples=len(samples), seed=plan.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for position in positions:
        share = WorkUnit.at(position, plan.num_workers)
        batch = samples.batch(stream.take(*slice_of(share.rank, share.step, plan.batch_sizes)))
        optimizer.zero_grad()
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


ONLY = ("easgd",)
LAWS = (
    Law("E1", "an exchange conserves the sum of worker and centre", ONLY, e1_an_exchange_loses_nothing),
    Law(
        "E2",
        "without elasticity every worker trains alone on its work units, bitwise; each is done once",
        ONLY,
        e2_without_elasticity_everyone_is_alone,
    ),
    Law("E3", "consensus is a fixed point", ONLY, e3_consensus_is_a_fixed_point),
    Law(
        "E4",
        "the sum over workers and centre does not depend on the order of exchanges; the centre does",
        ONLY,
        e4_the_sum_does_not_depend_on_the_order,
    ),
)
