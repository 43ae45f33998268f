"""Remarks on a plan: what limits or biases its numbers.

`paceline laws` proves what they claim; docs/concepts/modes.md explains them.
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
    """True if no worker ever waits for another."""
    return plan.mode in ("asgd", "adpsgd") or (plan.mode == "ssp" and plan.strategy.staleness is None)


def shares_work(plan: Plan) -> bool:
    """True if a free worker takes the next work unit, rather than each worker its own share."""
    return plan.mode == "backup" or is_unbounded(plan) or bool(server_names(plan))


def remarks(plan: Plan, *, cpu_count: int | None = None) -> list[str]:
    notes = [*_about_data(plan), *_about_sharing(plan, cpu_count), *_about_virtual_time(plan)]
    if plan.num_workers > 1:
        notes += [*_about_stragglers(plan), *_about_staleness(plan), *_about_backup_workers(plan)]
        notes += [*_about_local_steps(plan), *byzantine_remarks(plan)]
        notes += [*compression_remarks(plan), *_about_neighbours(plan), *_about_adapting(plan)]
    elif plan.mode not in ("single", "easgd", "fedavg"):
        notes.append("with one worker every mode is plain sequential training")
    more = [*_about_losses(plan), *_about_elasticity(plan), *_about_clients(plan)]
    return [*notes, *more, *elastic_remarks(plan)]


def _about_losses(plan: Plan) -> Iterator[str]:
    is_in_rounds = longest_commit(plan) > 1 or (plan.mode == "fedavg" and plan.strategy.sync_every > 1)
    if plan.elastic is not None and is_in_rounds:
        yield (
            f"whole rounds are committed: after a worker is lost up to {plan.strategy.sync_every} steps are "
            "repeated, and Ctrl-C ends the run at the end of a round"
        )


def _about_data(plan: Plan) -> Iterator[str]:
    if data_of(plan) == SYNTHETIC:
        yield "the data is synthetic: the metrics do not apply to the real data set"
    if is_remote_data(data_of(plan)):
        yield (
            "workers read the data during training: each machine needs network access to it, and credentials"
        )
    if plan.shuffle_block is not None:
        yield (
            f"samples are shuffled within windows of eight blocks of {plan.shuffle_block}: compare only "
            "with runs of the same order"
        )


def _about_virtual_time(plan: Plan) -> Iterator[str]:
    if plan.launcher is Launcher.VIRTUAL:
        yield (
            f"times are virtual: a step takes {plan.pace_s * 1000:g} ms times its slowness, everything else "
            "takes no time; losses and waits are real, the compute speed of this machine is not measured"
        )


def _about_sharing(plan: Plan, cpu_count: int | None) -> Iterator[str]:
    threads = plan.processes * plan.threads_per_worker
    if plan.launcher is Launcher.VIRTUAL:
        return
    if cpu_count is not None and plan.device is Device.CPU and threads > cpu_count:
        yield (
            f"{threads} threads share {cpu_count} processors, so the throughput here does not predict that "
            f"of {plan.processes} machines; set pace to simulate equal compute times"
        )


def _about_stragglers(plan: Plan) -> Iterator[str]:
    slow = persistent_stragglers(plan)
    if not slow:
        return
    names = f"worker {slow[0]} is" if len(slow) == 1 else f"workers {', '.join(map(str, slow))} are"
    if plan.mode in MODES and MODES[plan.mode].waits_every_step:
        yield (
            f"{names} always slow: every step waits for the slowest worker; asgd would not, nor would backup "
            f"with backup_workers {len(slow)}; adaptive would give it less work"
        )
    elif plan.mode == "fedavg" and plan.strategy.clients_per_round < 1.0:
        yield f"{names} always slow: each round that samples it waits for it"
    elif plan.mode in ("localsgd", "fedavg", "diloco", "dssp") or (
        plan.mode == "ssp" and plan.strategy.staleness is not None
    ):
        knob = "staleness" if plan.mode in ("ssp", "dssp") else "sync_every"
        yield (
            f"{names} always slow: {plan.mode} then has the same long-run rate as ssgd, N / t_max, whatever"
            f" {knob} is; it helps against transient delays. Against a persistent straggler use asgd or "
            "adaptive,"
            " or a smaller batch_size for the slow worker"
        )
    elif plan.mode == "easgd":
        yield f"{names} always slow: the others continue without waiting, and do more of the work"
    elif plan.mode == "gossip":
        yield (
            f"{names} always slow: gossip then has the long-run rate of ssgd, N / t_max: neighbours wait "
            "for each other at every step. It helps against transient delays; against a persistent "
            "straggler use adpsgd or asgd"
        )
    elif plan.mode == "adpsgd":
        yield (
            f"{names} always slow: the others continue without waiting, and its gradients are computed on"
            " parameters that neighbours have averaged with since"
        )
    elif plan.mode == "backup":
        yield f"{names} always slow: {_help_of_backup_workers(plan, len(slow))}"
    elif plan.mode in ("asgd", "ssp"):
        yield f"{names} always slow: the others continue without waiting, and its gradients arrive stale"


def _help_of_backup_workers(plan: Plan, slow: int) -> str:
    spare = plan.strategy.backup_workers
    if spare >= slow:
        them, their = ("it", "its") if slow == 1 else ("them", "their")
        return f"the others continue without {them}, and the next idle worker does {their} part of the work"
    return f"backup_workers is only {spare}, so every update waits for a slow one; set it to {slow}"


def _about_backup_workers(plan: Plan) -> Iterator[str]:
    if plan.mode != "backup":
        return
    workers = plan.processes
    spare = plan.strategy.backup_workers
    counted = plan.gradients_per_update
    if spare == 0:
        yield "backup without backup_workers is ps: every update waits for all gradients"
        return
    first = "the first" if counted == 1 else f"the mean of the first {counted}"
    updates = -(-plan.total_gradients // counted)
    yield (
        f"each update is {first} of {workers} gradients of a step; the other gradients are discarded, and "
        "their samples go to the next idle worker, so no sample is lost"
    )
    yield (
        f"there are {updates:,} updates at the full learning rate where ssgd makes {plan.steps:,}, so the "
        f"same samples move the parameters {plan.num_workers}/{counted} times as far; use a learning rate "
        f"for batches of {counted}"
    )


def _about_staleness(plan: Plan) -> Iterator[str]:
    peers = plan.num_workers - 1
    if plan.mode == "ssp":
        bound = plan.strategy.staleness
        if bound is None:
            yield "ssp without a bound is asgd"
        elif bound == 0:
            yield "ssp with a bound of 0 equals ssgd: every worker waits for the slowest at every step"
        else:
            yield (
                f"no worker starts a step more than {bound} ahead of the slowest; in versions of the"
                f" parameters, staleness is at most (2*{bound}+1)*(N-1) = {(2 * bound + 1) * peers}"
            )
    if plan.mode == "dssp":
        low = plan.strategy.staleness or 0
        high = (plan.strategy.staleness or 0) + plan.strategy.staleness_range
        yield (
            f"no worker starts a step more than {low} to {high} ahead of the slowest: further than {low} "
            "only if the latest pushes predict that waiting later costs less"
        )
    yield from _about_variants(plan)
    if is_unbounded(plan) and plan.mode != "adpsgd":
        yield f"mean staleness tends to N-1 = {peers}, whatever the workers' speeds"
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
                "the rate of each update is divided by its staleness, so the same samples move the "
                "parameters less far, least those of slow workers"
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
            "with samples in proportion to speed the result is that of ssgd up to rounding, which depends "
            "on the measured speeds; every change is an event with its reason, and replay follows them"
        )
    if plan.strategy.adaptive is not Allowed.BATCH:
        yield "with local steps the result is that of localsgd, not of ssgd; --adaptive batch disables them"
    if plan.strategy.adaptive is Allowed.AUTO and len(set(plan.batch_sizes)) > 1:
        yield "the batch sizes differ, so local steps, which need equal ones, are not considered"
    cuts_samples = plan.elastic is None and plan.strategy.adaptive is not Allowed.LOCAL_STEPS
    if plan.global_batch < _FINE * plan.num_workers and cuts_samples:
        yield (
            f"{plan.global_batch} samples among {plan.num_workers} workers can be divided only coarsely; "
            "larger batches follow the speeds more closely"
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
        f"the trained model is the centre: each exchange moves worker and centre {alpha:.1%} of their "
        "distance towards each other; the loss is the workers', the metrics are the centre's"
    )
    if plan.strategy.elasticity == 0.0:
        yield "with an elasticity of 0 workers train alone, and the centre never moves"
    elif plan.num_workers == 1:
        yield "with one worker the centre follows it: this is not plain sequential training"
    yield (
        "only the centre is saved: after a resume all workers start from it, with fresh optimizers, so a "
        "resumed run is not bitwise equal to an uninterrupted one"
    )


def _about_clients(plan: Plan) -> Iterator[str]:
    if plan.mode != "fedavg":
        return
    if plan.strategy.clients_per_round < 1.0 and plan.num_workers > 1:
        drawn = clients_per_round(plan.strategy.clients_per_round, plan.num_workers)
        yield (
            f"{drawn} of {plan.num_workers} workers are sampled for a round, and the others wait: at most"
            f" {drawn / plan.num_workers:.0%} of them compute at a time; each worker still does all its steps"
        )
    if plan.optimizer is None or plan.optimizer.name != "sgd":
        yield "the optimizer's state, if it has one, is reset in every round: clients are stateless"


def _about_neighbours(plan: Plan) -> Iterator[str]:
    if plan.mode not in ("gossip", "adpsgd"):
        return
    yield "workers differ during the run; after the last step all take their exact mean"
    options = plan.strategy
    if plan.mode == "gossip":
        rounds = rounds_to_all(options.topology, plan.num_workers)
        yield (
            f"changes of a worker, and a stop request, reach all others after {rounds}"
            f" step{'s' * (rounds != 1)} on this graph ({options.topology.value})"
        )
        if options.topology is Topology.COMPLETE and options.gossip is GossipVariant.DPSGD:
            yield (
                "dpsgd on a complete graph is not ssgd: each gradient is computed before the mixing;"
                " --gossip diffusion is ssgd there"
            )
    if plan.optimizer is None or plan.optimizer.name != "sgd":
        yield "the optimizer's own state, if it has one, stays local"
