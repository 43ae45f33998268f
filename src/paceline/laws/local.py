"""L: LocalSGD, a few steps alone, then an average."""

from collections.abc import Callable

from paceline.laws.lab import PASSING, QUADRATIC, Lab, distance, run
from paceline.laws.law import Finding, Law, within
from paceline.plan.plan import OptimizerChoice, StrategyOptions
from paceline.worker.participant import state_hash
from paceline.worker.replica import Replica

EVERY_STEP = StrategyOptions(sync_every=1)
LINEAR = {"sgd": 0.0, "momentum": 0.0, "nesterov": 0.0, "l2": 0.01}


def l1_period_one_is_synchronous(name: str) -> Callable[[Lab], Finding]:
    def check(lab: Lab) -> Finding:
        choice = OptimizerChoice(name="momentum" if name == "l2" else name, lr=0.1, weight_decay=LINEAR[name])
        local = run(lab.plan(optimizer=choice, strategy=EVERY_STEP))
        return within(distance(local, run(lab.other("ssgd", optimizer=choice))), 1e-12)

    return check


def l2_but_not_for_adam(lab: Lab) -> Finding:
    choice = OptimizerChoice(name="adam", lr=0.05)
    apart = distance(
        run(lab.plan(optimizer=choice, strategy=EVERY_STEP)), run(lab.other("ssgd", optimizer=choice))
    )
    return Finding(apart > 1e-6, f"they differ by {apart:.2e}, as they must")


def l2_nor_with_clipping(lab: Lab) -> Finding:
    apart = distance(run(lab.plan(clip_norm=0.3, strategy=EVERY_STEP)), run(lab.other("ssgd", clip_norm=0.3)))
    return Finding(apart > 1e-6, f"they differ by {apart:.2e}, as they must")


def l3_averaged_moments_are_equal(lab: Lab) -> Finding:
    options = StrategyOptions(sync_every=4, average_optimizer_state=True)
    done = run(lab.plan(optimizer=OptimizerChoice(name="adam", lr=0.05), strategy=options))
    hashes = {state_hash(replica.optimizer_state()) for replica in done.replicas.values()}
    return Finding(len(hashes) == 1, f"{len(hashes)} different Adam states over {len(done.replicas)} workers")


def l4_syncs_come_when_they_should(lab: Lab) -> Finding:
    plan = lab.plan(steps=10, strategy=StrategyOptions(sync_every=4))
    seen: dict[int, set[str]] = {}

    def note(_: int, steps: int, replica: Replica) -> None:
        seen.setdefault(steps, set()).add(state_hash(replica.arena.named_state()))

    run(plan, after_step=note)
    equal_after = sorted(steps for steps, hashes in seen.items() if len(hashes) == 1)
    return Finding(equal_after == [4, 8, 10], f"with H = 4 and 10 steps all are equal after {equal_after}")


def l4_post_local_syncs_every_step_at_first(lab: Lab) -> Finding:
    plan = lab.plan(steps=10, strategy=StrategyOptions(sync_every=4, post_local_after=3))
    synced = [r.step + 1 for r in run(plan).history.steps[0] if r.synced]
    return Finding(synced == [1, 2, 3, 7, 10], f"with t' = 3 and H = 4 it syncs after {synced}")


def l5_bytes_are_one_hth(lab: Lab) -> Finding:
    rarely = run(lab.plan(steps=12, strategy=StrategyOptions(sync_every=4)))
    always = run(lab.plan(steps=12, strategy=EVERY_STEP))
    ssgd = run(lab.other("ssgd", steps=12))
    mine, own, theirs = (
        sum(r.bytes_out for rows in done.history.steps.values() for r in rows)
        for done in (rarely, always, ssgd)
    )
    # ssgd's vector is padded, and carries buffers and the wish to stop; who sends less does no wrong.
    return Finding(mine * 4 == own <= theirs, f"{mine} bytes · 4 against {own} with H = 1, {theirs} of ssgd")


def l6_equal_hessians_do_not_drift(lab: Lab) -> Finding:
    plan = lab.plan(task=QUADRATIC, steps=21, strategy=StrategyOptions(sync_every=7))
    return within(distance(run(plan), run(lab.other("ssgd", task=QUADRATIC, steps=21))), 1e-12)


def l7_storage_is_never_rebound(lab: Lab) -> Finding:
    """Shared memory, flat views and captured graphs hold addresses; averaging must write to them."""
    moved: dict[str, int] = {}

    def note(_: int, steps: int, replica: Replica) -> None:
        arena = replica.arena
        for piece, parameter in zip(arena.layout.parameters, arena.module.parameters(), strict=True):
            if parameter.data_ptr() != piece.view(arena.state).data_ptr():
                moved.setdefault(piece.name, steps)

    run(lab.plan(), after_step=note)
    return Finding(not moved, f"parameters elsewhere than before (name: since step): {moved}")


def l9_without_a_gradient_it_is_averaged_too(lab: Lab) -> Finding:
    """A part of the model that got its last gradient a step before the averaging must not be left out."""
    seen: dict[int, dict[str, set[str]]] = {}

    def note(_: int, steps: int, replica: Replica) -> None:
        for name, tensor in replica.arena.named_state().items():
            seen.setdefault(steps, {}).setdefault(name, set()).add(state_hash({name: tensor}))

    done = run(lab.plan(task=PASSING), after_step=note)
    synced = [r.step + 1 for r in done.history.steps[0] if r.synced]
    left_out = {name for step in synced for name, hashes in seen[step].items() if len(hashes) > 1}
    return Finding(
        bool(synced) and not left_out, f"averaged after steps {synced}; left out: {sorted(left_out)}"
    )


ONLY = ("localsgd",)
AVERAGING = ("localsgd", "diloco")
LAWS = (
    *(
        Law(
            f"L1.{name}",
            f"averaging after every step is synchronous SGD, for {name}",
            ONLY,
            l1_period_one_is_synchronous(name),
        )
        for name in LINEAR
    ),
    Law("L2.adam", "averaging after every step is not synchronous SGD for Adam", ONLY, l2_but_not_for_adam),
    Law(
        "L2.clipping",
        "averaging after every step is not synchronous SGD with clipping",
        ONLY,
        l2_nor_with_clipping,
    ),
    Law(
        "L3",
        "with the optimizer's state averaged, Adam's moments agree after a sync",
        ONLY,
        l3_averaged_moments_are_equal,
    ),
    Law(
        "L4",
        "replicas are equal after steps H, 2H, … and the last, and only then",
        ONLY,
        l4_syncs_come_when_they_should,
    ),
    Law(
        "L4.post",
        "post-local SGD syncs every step at first, then every H",
        ONLY,
        l4_post_local_syncs_every_step_at_first,
    ),
    Law("L5", "bytes are those of synchronous SGD divided by H", ONLY, l5_bytes_are_one_hth),
    Law(
        "L6",
        "with equal Hessians the average is exactly synchronous SGD's, for any H",
        ONLY,
        l6_equal_hessians_do_not_drift,
    ),
    Law(
        "L7",
        "averaging writes into the existing storage and never rebinds it",
        AVERAGING,
        l7_storage_is_never_rebound,
        per_mode=True,
    ),
    Law(
        "L9",
        "parameters without a gradient in the averaging step are averaged too",
        AVERAGING,
        l9_without_a_gradient_it_is_averaged_too,
        per_mode=True,
    ),
)
