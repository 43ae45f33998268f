"""What should a user know about this plan before believing its numbers?

`paceline laws` proves them; docs/concepts/modes.md explains them.
"""

from collections.abc import Iterator

from paceline.plan.catalog import MODES, SYNTHETIC, data_of, server_names
from paceline.plan.describe import (
    byzantine_remarks,
    compression_remarks,
    elastic_remarks,
    persistent_stragglers,
)
from paceline.plan.plan import AsgdVariant, Device, GossipVariant, Launcher, Plan
from paceline.plan.schedule import longest_commit
from paceline.plan.urls import is_remote_data
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.averaging import clients_per_round
from paceline.sync.topology import Topology, rounds_to_all

_FINE = 16  # samples per worker: the cut is then within some percent of the speeds
_ADAM_LIKE = frozenset({"adam", "adamw"})


def is_unbounded(plan: Plan) -> bool:
    """Does nobody ever wait for another worker?"""
    return plan.mode in ("asgd", "adpsgd") or (plan.mode == "ssp" and plan.strategy.staleness is None)


def shares_work(plan: Plan) -> bool:
    """Does whoever is free take the next share, rather than everybody their own?"""
    return plan.mode == "backup" or is_unbounded(plan) or bool(server_names(plan))


def remarks(plan: Plan, *, cpu_count: int | None = None) -> list[str]:
    found = [*_about_data(plan), *_about_sharing(plan, cpu_count), *_about_virtual_time(plan)]
    if plan.num_workers > 1:
        found += [*_about_stragglers(plan), *_about_staleness(plan), *_about_backup_workers(plan)]
        found += [*_about_local_steps(plan), *byzantine_remarks(plan)]
        found += [*compression_remarks(plan), *_about_neighbours(plan), *_about_adapting(plan)]
    elif plan.mode not in ("single", "easgd", "fedavg"):
        found.append("with one worker every mode is plain sequential training")
    more = [*_about_losses(plan), *_about_elasticity(plan), *_about_clients(plan)]
    return [*found, *more, *elastic_remarks(plan)]


def _about_losses(plan: Plan) -> Iterator[str]:
    is_in_rounds = longest_commit(plan) > 1 or (plan.mode == "fedavg" and plan.strategy.sync_every > 1)
    if plan.elastic is not None and is_in_rounds:
        yield (
            f"whole rounds are committed: after a loss up to {plan.strategy.sync_every} steps are made"
            " again, and Ctrl-C ends the run at the end of a round"
        )


def _about_data(plan: Plan) -> Iterator[str]:
    if data_of(plan) == SYNTHETIC:
        yield "the data is synthetic: what is learnt from it says nothing about the real data set"
    if is_remote_data(data_of(plan)):
        yield "workers read the data while they train: each machine needs the way to it, and credentials"
    if plan.shuffle_block is not None:
        yield (
            f"samples are mixed with those of eight stretches of {plan.shuffle_block} only: compare with runs"
            " in the same order"
        )


def _about_virtual_time(plan: Plan) -> Iterator[str]:
    if plan.launcher is Launcher.VIRTUAL:
        yield (
            f"times are virtual: a step takes {plan.pace_s * 1000:g} ms times its slowness, everything else"
            " takes none; what is learnt and who waits are real, how fast this machine computes is not shown"
        )


def _about_sharing(plan: Plan, cpu_count: int | None) -> Iterator[str]:
    threads = plan.processes * plan.threads_per_worker
    if plan.launcher is Launcher.VIRTUAL:
        return
    if cpu_count is not None and plan.device is Device.CPU and threads > cpu_count:
        yield (
            f"{threads} threads share {cpu_count} processors and take turns, so this machine's throughput"
            " says little about that of as many machines; set pace to simulate equal compute times"
        )


def _about_stragglers(plan: Plan) -> Iterator[str]:
    slow = persistent_stragglers(plan)
    if not slow:
        return
    who = f"worker {slow[0]} is" if len(slow) == 1 else f"workers {', '.join(map(str, slow))} are"
    if plan.mode in MODES and MODES[plan.mode].waits_every_step:
        yield (
            f"{who} always slow: every step waits for the slowest worker; asgd would not, nor would backup"
            f" with backup_workers {len(slow)}, and adaptive would give the slow one less to do"
        )
    elif plan.mode == "fedavg" and plan.strategy.clients_per_round < 1.0:
        yield f"{who} always slow: each round it is drawn for waits for it"
    elif plan.mode in ("localsgd", "fedavg", "diloco", "dssp") or (
        plan.mode == "ssp" and plan.strategy.staleness is not None
    ):
        knob = "staleness" if plan.mode in ("ssp", "dssp") else "sync_every"
        yield (
            f"{who} always slow: {plan.mode} then has the same long-run rate as ssgd, N / t_max, whatever"
            f" {knob} is; it helps against passing delays. Against a lasting one use asgd or adaptive,"
            " or a smaller batch_size for the slow worker"
        )
    elif plan.mode == "easgd":
        yield f"{who} always slow: the others go on without waiting, and do more of the blocks of work"
    elif plan.mode == "gossip":
        yield (
            f"{who} always slow: gossip then has the same long-run rate as ssgd, N / t_max: neighbours wait"
            " at every step, and their neighbours for them. It helps against passing delays; against a"
            " lasting one use adpsgd or asgd"
        )
    elif plan.mode == "adpsgd":
        yield (
            f"{who} always slow: the others go on without waiting, and its gradients are computed on"
            " parameters that neighbours have averaged with since"
        )
    elif plan.mode == "backup":
        yield f"{who} always slow: {_help_of_backup_workers(plan, len(slow))}"
    elif plan.mode in ("asgd", "ssp"):
        yield f"{who} always slow: the others go on without waiting, and its gradients arrive stale"


def _help_of_backup_workers(plan: Plan, slow: int) -> str:
    spare = plan.strategy.backup_workers
    if spare >= slow:
        whom, whose = ("it", "its") if slow == 1 else ("them", "their")
        return f"the others go on without {whom}, and whoever is next does {whose} part of the work"
    return f"backup_workers is only {spare}, so every update waits for a slow one; set it to {slow}"


def _about_backup_workers(plan: Plan) -> Iterator[str]:
    if plan.mode != "backup":
        return
    workers, spare, counted = plan.processes, plan.strategy.backup_workers, plan.gradients_per_update
    if spare == 0:
        yield "backup without backup_workers is ps: every update waits for all gradients"
        return
    first = "the first" if counted == 1 else f"the mean of the first {counted}"
    updates = -(-plan.total_gradients // counted)
    yield (
        f"each update is {first} of {workers} gradients of a step; what the others have computed by then is"
        " thrown away, and their samples are used again by whoever is next, so that none is lost"
    )
    yield (
        f"there are {updates:,} updates with the full rate where ssgd makes {plan.steps:,}, so equal samples"
        f" move the parameters {plan.num_workers}/{counted} times as far; take a rate for batches of"
        f" {counted}"
    )


def _about_staleness(plan: Plan) -> Iterator[str]:
    others = plan.num_workers - 1
    if plan.mode == "ssp":
        bound = plan.strategy.staleness
        if bound is None:
            yield "ssp without a bound is asgd"
        elif bound == 0:
            yield "ssp with a bound of 0 equals ssgd: everybody waits for the slowest at every step"
        else:
            yield (
                f"no worker starts a step more than {bound} ahead of the slowest; in versions of the"
                f" parameters, staleness is at most (2*{bound}+1)*(N-1) = {(2 * bound + 1) * others}"
            )
    if plan.mode == "dssp":
        low, high = (
            plan.strategy.staleness or 0,
            (plan.strategy.staleness or 0) + plan.strategy.staleness_range,
        )
        yield (
            f"no worker starts a step more than {low} to {high} ahead of the slowest: further than {low} only"
            " where, from the latest pushes, waiting later is foretold to cost less"
        )
    yield from _about_variants(plan)
    if is_unbounded(plan) and plan.mode != "adpsgd":
        yield f"mean staleness tends to N-1 = {others}, whatever the workers' speeds"
    name = plan.optimizer.name if plan.optimizer is not None else None
    if plan.mode in ("asgd", "ssp", "dssp") and name in ("momentum", "nesterov"):
        yield "asynchrony adds momentum of its own, about 1-1/N; a smaller one may train better"
    if plan.mode in ("asgd", "ssp", "dssp") and name in _ADAM_LIKE:
        yield "adam at the server mixes gradients of several versions in its second moment"


def _about_variants(plan: Plan) -> Iterator[str]:
    options = plan.strategy
    match options.asgd:
        case AsgdVariant.STALENESS_AWARE:
            yield (
                "the rate of each update is divided by its staleness, so training moves less far on the same"
                " samples, least on those of slow workers"
            )
        case AsgdVariant.DC:
            yield f"each gradient is corrected for its delay with strength {options.dc_lambda:g} (DC-ASGD)"
        case AsgdVariant.RINGMASTER:
            yield (
                f"gradients {options.max_staleness} or more versions old are discarded, and their samples are"
                " used again: more is computed than is applied"
            )
        case AsgdVariant.PLAIN:
            pass


def _about_adapting(plan: Plan) -> Iterator[str]:
    if plan.mode != "adaptive":
        return
    if plan.strategy.adaptive is not Allowed.LOCAL_STEPS and plan.elastic is None:
        yield (
            "with samples by speed the result is that of ssgd, but which bits it has depends on the speeds"
            " that were measured; every change is an event with its reason, and replay follows them"
        )
    if plan.strategy.adaptive is not Allowed.BATCH:
        yield "local steps compute what localsgd computes, not ssgd; --adaptive batch rules them out"
    if plan.strategy.adaptive is Allowed.AUTO and len(set(plan.batch_sizes)) > 1:
        yield "the batches differ, so local steps, which are dealt out in equal shares, are not considered"
    cuts_samples = plan.elastic is None and plan.strategy.adaptive is not Allowed.LOCAL_STEPS
    if plan.global_batch < _FINE * plan.num_workers and cuts_samples:
        yield (
            f"{plan.global_batch} samples among {plan.num_workers} workers can be cut only coarsely; larger"
            " batches let the shares follow the speeds more closely"
        )


def _about_local_steps(plan: Plan) -> Iterator[str]:
    if plan.mode != "localsgd":
        return
    uses_adam = plan.optimizer is not None and plan.optimizer.name in _ADAM_LIKE
    if plan.strategy.sync_every == 1:
        if uses_adam or plan.clip_norm is not None:
            cause = "adam" if uses_adam else "clipping"
            yield f"sync_every 1 does not equal ssgd here: {cause} acts before the averaging, not after"
        else:
            yield "sync_every 1 equals ssgd for sgd, momentum, nesterov and L2, not for adam or clipping"
    stateful = plan.optimizer is None or plan.optimizer.name != "sgd"
    if stateful and not plan.strategy.average_optimizer_state:
        yield "the optimizer's own state, if it has one, stays local; average_optimizer_state averages it too"


def _about_elasticity(plan: Plan) -> Iterator[str]:
    if plan.mode != "easgd":
        return
    alpha = plan.strategy.elasticity / plan.num_workers
    yield (
        f"what is trained is the centre: each exchange moves worker and centre {alpha:.1%} of their distance"
        " towards each other; loss is recorded at the workers, metrics are the centre's"
    )
    if plan.strategy.elasticity == 0.0:
        yield "with an elasticity of 0 workers train alone, and the centre never moves"
    elif plan.num_workers == 1:
        yield "with one worker the centre follows it: this is not plain sequential training"
    yield (
        "only the centre is saved: after a resume all workers start from it, with fresh optimizers, so a"
        " resumed run does not end with the bits of an uninterrupted one"
    )


def _about_clients(plan: Plan) -> Iterator[str]:
    if plan.mode != "fedavg":
        return
    if plan.strategy.clients_per_round < 1.0 and plan.num_workers > 1:
        drawn = clients_per_round(plan.strategy.clients_per_round, plan.num_workers)
        yield (
            f"{drawn} of {plan.num_workers} workers are drawn for a round, and the others wait: no more than"
            f" {drawn / plan.num_workers:.0%} of them compute at a time; everybody still does all its steps"
        )
    if plan.optimizer is None or plan.optimizer.name != "sgd":
        yield "the optimizer's own state, if it has one, begins anew in every round: clients remember nothing"


def _about_neighbours(plan: Plan) -> Iterator[str]:
    if plan.mode not in ("gossip", "adpsgd"):
        return
    yield "workers differ during the run; after the last step their exact mean is the model of all"
    options = plan.strategy
    if plan.mode == "gossip":
        rounds = rounds_to_all(options.topology, plan.num_workers)
        yield (
            f"news of a worker, and a wish to stop, reach all others after {rounds}"
            f" step{'s' * (rounds != 1)} on this graph ({options.topology.value})"
        )
        if options.topology is Topology.COMPLETE and options.gossip is GossipVariant.DPSGD:
            yield (
                "dpsgd on a complete graph is not ssgd: each gradient is computed before the mixing;"
                " --gossip diffusion is ssgd there"
            )
    if plan.optimizer is None or plan.optimizer.name != "sgd":
        yield "the optimizer's own state, if it has one, stays local"
