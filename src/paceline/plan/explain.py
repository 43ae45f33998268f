"""Explanation of a plan in plain sentences, by topic, before anything starts."""

from dataclasses import dataclass

from paceline.plan.catalog import MODES, SCRIPT_TASK, TASKS, Channel, server_names
from paceline.plan.compression import CODECS
from paceline.plan.compression import describe_codec as codec_in_words
from paceline.plan.describe import (
    describe_aggregate,
    describe_attack,
    describe_evaluation,
    describe_length,
    describe_lr_scaling,
    describe_straggler,
    describe_workforce,
)
from paceline.plan.plan import Device, EventDetail, GossipVariant, Launcher, Plan, Transport
from paceline.plan.remarks import remarks, shares_work
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.schedule import RateSchedule, RateShape
from paceline.sync.topology import Topology, neighbours


@dataclass(frozen=True, slots=True)
class Line:
    topic: str
    text: str


_BY_WHAT = {
    Transport.NONE: "memory",
    Transport.SHM: "shared memory",
    Transport.GLOO: "gloo",
    Transport.NCCL: "NCCL",
    Transport.TCP: "TCP",
    Transport.CUDA_IPC: "the GPU's own memory",
}


def explain(plan: Plan, *, cpu_count: int | None = None) -> list[Line]:
    """`cpu_count` adds a warning when workers must share processors."""
    lines = [
        Line("run", f"{plan.run}: task {plan.task}, mode {plan.mode}, seed {plan.seed}"),
        Line("task", _task(plan)),
        Line("mode", MODES[plan.mode].summary if plan.mode in MODES else "your own class, imported by name"),
        Line("workers", _workers(plan)),
        Line("traffic", _travels(plan)),
        *_smaller(plan),
        Line("work", _work(plan) + describe_length(plan)),
        Line("rate", _rate(plan)),
    ]
    if plan.evaluation is not None:
        lines.append(Line("evaluated", describe_evaluation(plan.evaluation)))
    if plan.strategy.aggregate != "mean":
        lines.append(Line("aggregate", describe_aggregate(plan)))
    if plan.strategy.sync_batchnorm:
        lines.append(Line("batchnorm", "layers normalise over the samples of all workers"))
    lines += [Line("stragglers", describe_straggler(rule)) for rule in plan.stragglers]
    lines += [Line("byzantine", describe_attack(rule)) for rule in plan.byzantine]
    if plan.pace_s:
        lines.append(Line("pace", f"forward and backward take at least {plan.pace_s * 1000:g} ms per step"))
    lines.append(Line("folder", _records(plan)))
    lines.append(Line("timeout", f"peer timeout {plan.timeout_s:g} s"))
    lines += [Line("export", f"metrics are also exported to {target.text}") for target in plan.exports]
    if plan.alerts is not None:
        lines.append(Line("alerts", f"rules of {plan.alerts}, sent to its notifiers"))
    lines += [Line("remark", text) for text in remarks(plan, cpu_count=cpu_count)]
    return lines


def _task(plan: Plan) -> str:
    if plan.task == SCRIPT_TASK:
        return f"the training loop of {plan.task_options['file']}"
    return TASKS.get(plan.task, "your own class, imported by name") + _options(plan)


def _options(plan: Plan) -> str:
    given = ", ".join(f"{name}={value}" for name, value in plan.task_options.items())
    return f" (options: {given})" if given else ""


def _workers(plan: Plan) -> str:
    device = "CPU" if plan.device is Device.CPU else "GPU"
    threads = "1 thread" if plan.threads_per_worker == 1 else f"{plan.threads_per_worker} threads"
    if plan.launcher is Launcher.VIRTUAL:
        how = "concurrent gradients in one vmapped pass" if plan.vmap else "one after another"
        return (
            f"{plan.num_workers} in one process, in virtual time on the {device}, {how},"
            f" in {plan.dtype.value}"
        )
    subject = "1 process" if plan.processes == 1 else f"{plan.processes} processes, each"
    text = f"{subject} computing on the {device} with {threads}, in {plan.dtype.value}{_on_ray(plan)}"
    if plan.elastic is None or server_names(plan):
        return text
    return f"{text}; {describe_workforce(plan, plan.elastic)}"


def _on_ray(plan: Plan) -> str:
    if plan.ray is None:
        return ""
    where = "started here and stopped afterwards" if plan.ray.address == "local" else f"at {plan.ray.address}"
    again = f"; after a loss all workers restart, at most {plan.ray.restarts} times"
    return f", as actors of Ray, {where}{again if plan.ray.restarts else ''}"


def _travels(plan: Plan) -> str:
    by = _BY_WHAT[plan.transport]
    if plan.transport is Transport.NONE and plan.launcher is not Launcher.VIRTUAL:
        return "none: there is one worker"
    if plan.mode not in MODES:
        return f"whatever your strategy sends, over {by}"
    if plan.mode == "localsgd":
        return _averaging(plan, by)
    if plan.mode == "diloco":
        return _outer_steps(plan, by)
    if plan.mode == "fedavg":
        return f"parameters, averaged over a round's workers after {_steps(plan)}, by all-reduce over {by}"
    if plan.mode == "easgd":
        return f"a worker's parameters to the centre on a server, and back, after {_steps(plan)}, over {by}"
    if plan.mode == "onebit":
        start = f"gradients during the first {plan.strategy.freeze_after} steps, then signs of the momentum"
        return f"{start}, averaged at every step over {by}"
    if plan.mode in ("gossip", "adpsgd"):
        return _between_neighbours(plan, by)
    if plan.mode == "adaptive":
        return _as_decided(plan, by)
    if MODES[plan.mode].channel is Channel.STORE:
        server = "a parameter server with a backup" if plan.elastic else "a parameter server"
        return f"gradients to {server} and parameters back at every step, over {by}"
    if plan.strategy.aggregate != "mean":
        return f"every worker's gradients to every worker at every step, gathered over {by}"
    return f"gradients at every step, averaged over all workers by all-reduce over {by}"


def _steps(plan: Plan) -> str:
    every = plan.strategy.sync_every
    return "every step" if every == 1 else f"{every} steps each"


def _smaller(plan: Plan) -> list[Line]:
    if plan.compress is None:
        return []
    codec = plan.compress.codec
    memory = (
        "; what a message omits is added to the next one (error feedback)"
        if plan.compress.error_feedback
        else ""
    )
    text = f"{codec_in_words(codec, plan.compress.amount)}: {CODECS[codec].summary}{memory}"
    if plan.compress.warmup:
        text += f"; more is sent during the first {plan.compress.warmup} steps"
    return [Line("compressed", text)]


def _averaging(plan: Plan, by: str) -> str:
    options = plan.strategy
    also = " and the optimizer's moments" if options.average_optimizer_state else ""
    start = f"; the first {options.post_local_after} steps are plain ssgd" if options.post_local_after else ""
    every = "step" if options.sync_every == 1 else f"{options.sync_every} steps"
    return f"parameters{also}, averaged after every {every} by all-reduce over {by}{start}"


def _outer_steps(plan: Plan, by: str) -> str:
    options = plan.strategy
    outer = f"an outer step (rate {options.outer_lr:g}, Nesterov momentum {options.outer_momentum:g})"
    text = f"parameters, averaged every {options.sync_every} steps by all-reduce over {by}; then {outer}"
    if options.fragments > 1:
        text += f"; {options.fragments} fragments take turns"
    if options.sync_delay:
        text += f"; applied {options.sync_delay} steps after averaging"
    if options.mixing:
        text += f"; {options.mixing:.0%} of a worker's own parameters is kept"
    return text


def _between_neighbours(plan: Plan, by: str) -> str:
    topology = plan.strategy.topology
    options = plan.strategy
    where = f"on a {topology.value} of {plan.num_workers}" if topology is not Topology.EXPONENTIAL else ""
    if plan.mode == "adpsgd":
        return f"parameters, averaged with one random neighbour's {where} after each gradient, over {by}"
    if options.gossip is GossipVariant.PUSH_SUM:
        if not where:
            return (
                "half of each worker's parameters after each update, 1, 2, 4 … ranks ahead in turn, "
                f"over {by}"
            )
        return (
            f"equal parts of each worker's parameters after each update to its neighbours {where}, over {by}"
        )
    degrees = {len(neighbours(topology, rank, plan.num_workers)) for rank in range(plan.num_workers)}
    each = f"{min(degrees)}" if len(degrees) == 1 else f"{min(degrees)} to {max(degrees)}"
    when = "before" if options.gossip is GossipVariant.DPSGD else "after"
    to = f"to {each} neighbours {where}"
    return f"each worker's parameters at every step {to}, mixed {when} the update, over {by}"


def _as_decided(plan: Plan, by: str) -> str:
    options = plan.strategy
    each_step = f"gradients at every step, weighted by their samples, by all-reduce over {by}"
    rounds = f"parameters, averaged after every {options.sync_every} steps by all-reduce over {by}"
    match options.adaptive:
        case Allowed.BATCH:
            return each_step
        case Allowed.LOCAL_STEPS:
            return rounds
        case Allowed.AUTO:
            return f"{each_step}; or, after a decision for local steps, {rounds}"


def _work(plan: Plan) -> str:
    if len(set(plan.batch_sizes)) == 1:
        each = f"{plan.batch_sizes[0]} samples"
    else:
        each = f"{', '.join(map(str, plan.batch_sizes))} samples (by worker, weighted by batch)"
    in_all = f"{plan.total_gradients:,} gradients and {plan.total_samples:,} samples in all"
    if plan.mode == "easgd":
        return (
            f"{in_all}, in gradients of {each}; an idle worker takes the next "
            f"{plan.strategy.sync_every}, so fast workers do more"
        )
    if shares_work(plan):
        return f"{in_all}, in gradients of {each}; an idle worker takes the next one, so fast workers do more"
    if plan.mode == "adaptive":
        takes = f"takes {each}" if plan.elastic is None else f"computes an equal part of the shards of {each}"
        return (
            f"{plan.steps:,} steps of {plan.global_batch:,} samples, {in_all}; at first each worker "
            f"{takes}, then in proportion to its measured speed"
        )
    return (
        f"each worker computes {plan.steps:,} gradients of {each}:"
        f" {plan.global_batch:,} samples per step, {in_all}"
    )


def _rate(plan: Plan) -> str:
    if plan.optimizer is not None:
        decay = f", weight decay {plan.optimizer.weight_decay:g}" if plan.optimizer.weight_decay else ""
        rate = f"{plan.optimizer.name} with learning rate {plan.optimizer.lr:g}{decay}"
    else:
        own = "its own learning rate" if plan.lr is None else f"learning rate {plan.lr:g}"
        rate = f"the task's optimizer with {own}"
    if plan.lr_schedule is not None:
        rate += _changing(plan.lr_schedule)
    if plan.clip_norm is not None:
        rate += f", gradients clipped to norm {plan.clip_norm:g}"
    if plan.lr_scale == 1.0:
        return rate
    if plan.lr_scale > 1.0:
        return f"{rate}, {describe_lr_scaling(plan)}"
    return (
        f"{rate}, divided by {plan.num_workers}: each gradient is applied alone, and {plan.num_workers} "
        "such updates move the parameters as far as one with their mean, so a sample has the same weight in "
        "every mode"
    )


def _changing(schedule: RateSchedule) -> str:
    rises = f", rising over the first {schedule.warmup} steps" if schedule.warmup else ""
    match schedule.shape:
        case RateShape.CONSTANT:
            return rises
        case RateShape.COSINE:
            return f"{rises}, falling to 0 along a cosine"
        case RateShape.LINEAR:
            return f"{rises}, falling to 0 linearly"


def _records(plan: Plan) -> str:
    steps = "every step in events.jsonl" if plan.events is EventDetail.FULL else "no events"
    often = f"every {plan.checkpoint_every} steps" if plan.checkpoint_every else "at the end"
    if plan.checkpoint_every:
        often += f", the newest {plan.keep_checkpoints} kept"
    copy = "" if plan.checkpoint_store is None else f"; a copy of the run folder in {plan.checkpoint_store}"
    return f"{steps}; a checkpoint {often}{copy}"
