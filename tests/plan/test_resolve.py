"""Rules of resolving: defaults, checks, and every problem at once."""

from typing import Any

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError, Problem
from paceline.plan.plan import Device, OptimizerChoice, Plan, StrategyOptions, Transport
from paceline.plan.resolve import resolve
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.schedule import RateSchedule, RateShape
from paceline.sync.topology import Topology

CPU = Facts()
TWO_GPUS = Facts(cuda_devices=2, cpu_count=8)


def plan(facts: Facts = CPU, /, **options: Any) -> Plan:  # Any: fields of TrainConfig
    return resolve(TrainConfig(**options), facts)


def problems(facts: Facts = CPU, /, **options: Any) -> list[Problem]:  # Any: fields of TrainConfig
    with pytest.raises(ConfigError) as caught:
        resolve(TrainConfig(**options), facts)
    return list(caught.value.problems)


def problem(facts: Facts = CPU, /, **options: Any) -> Problem:  # Any: fields of TrainConfig
    (only,) = problems(facts, **options)
    return only


def test_without_settings_a_small_synchronous_run_is_planned() -> None:
    assert plan() == Plan(
        run="xor-ssgd", task="xor", mode="ssgd", num_workers=2, steps=200, batch_sizes=(32, 32)
    )


def test_a_single_worker_is_one_and_sends_nothing(wording: Wording) -> None:
    single = plan(mode="single")
    assert (single.num_workers, single.transport, single.batch_sizes) == (1, Transport.NONE, (32,))
    wording(problem(mode="single", num_workers=4).what)


def test_adaptive_chooses_automatically_by_default(wording: Wording) -> None:
    options = plan(mode="adaptive").strategy
    assert (options.adaptive, options.sync_every) == (Allowed.AUTO, 8)
    assert plan(mode="adaptive", adaptive="batch").strategy.adaptive is Allowed.BATCH
    wording(problem(mode="adaptive", adaptive="both").what)
    wording(problem(mode="ssgd", adaptive="batch").what)


def test_local_steps_by_speed_need_equal_shares(wording: Wording) -> None:
    given = {"mode": "adaptive", "batch_size": (8, 4)}
    error = problem(adaptive="local-steps", **given)
    assert "(8, 4)" in error.what
    assert "--adaptive batch" in error.hint
    wording(error.what)
    assert plan(adaptive="batch", **given).batch_sizes == plan(**given).batch_sizes == (8, 4)


def test_aliases_are_undone_and_case_does_not_matter() -> None:
    assert plan(mode="allreduce").mode == "ssgd"
    assert plan(mode="Async").mode == "asgd"
    assert plan(task="XOR").task == "xor"


def test_three_wrong_settings_are_three_problems(wording: Wording) -> None:
    text = problems(mode="ssp", staleness=-1, num_workers=0, task="nope")
    assert len(text) == 3
    wording("\n".join(problem.what for problem in text))


def test_problems_found_while_reading_are_reported_together_with_the_others() -> None:
    earlier = Problem("steps is many, but it must be an integer", "set steps to 200", "--steps")
    with pytest.raises(ConfigError) as caught:
        resolve(TrainConfig(lr=-1.0, origins={"lr": "t.yaml:2"}), CPU, config_problems=[earlier])
    first, second = caught.value.problems
    assert first == earlier
    assert second.where == "t.yaml:2"


def test_an_unreadable_setting_causes_no_second_complaint() -> None:
    config = TrainConfig(batch_size=(1, 2, 3), origins={"num_workers": "--num-workers"})
    earlier = Problem("num_workers is x, but it must be an integer", "…")
    with pytest.raises(ConfigError) as caught:
        resolve(config, CPU, config_problems=[earlier])
    assert caught.value.problems == (earlier,)


@pytest.mark.parametrize("key", ["task", "mode"])
def test_a_name_is_built_in_or_a_module_that_exists(key: str, wording: Wording) -> None:
    known = Facts(modules=frozenset({"mine"}))
    assert getattr(plan(known, **{key: "mine:Thing"}), key) == "mine:Thing"
    assert "module:Class" in problem(known, **{key: "mine:"}).what
    assert "module:Class" in problem(**{key: "nothing-like-it"}).hint
    wording(problem(known, **{key: "other:Thing"}).what)


def test_a_misspelt_name_gets_a_suggestion_and_the_list() -> None:
    mode, task = problem(mode="localsdg").hint, problem(task="digit").hint
    assert "localsgd?" in mode
    assert "single, ssgd" in mode
    assert "digits?" in task
    assert "xor, digits" in task


def test_the_run_name_is_made_of_task_and_mode(wording: Wording) -> None:
    known = Facts(modules=frozenset({"my.code"}))
    assert plan(known, task="my.code:Task", mode="ssp").run == "my-code-task-ssp"
    assert plan(name="Exp_1.b").run == "Exp_1.b"
    for bad in ("a/b", "..", "-x", "a b", "x" * 101):
        wording(problem(name=bad).what)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": 0},
        {"num_workers": 10**9},
        {"steps": 0},
        {"batch_size": 0},
        {"batch_size": (4, 0)},
        {"seed": -1},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"lr_schedule": "cosin"},
        {"lr_warmup": -1},
        {"lr_warmup": 201},
        {"clip_norm": 0.0},
        {"clip_norm": float("inf")},
        {"pace": -0.1},
        {"timeout": 0.0},
        {"checkpoint_every": -1},
        {"threads_per_worker": 0},
        {"dtype": "float16"},
        {"device": "tpu"},
        {"transport": "pigeon"},
        {"launcher": "moon"},
        {"events": "some"},
        {"optimizer": "sdg"},
    ],
)
def test_a_value_out_of_range_is_one_problem_that_names_its_key_and_place(settings: dict[str, Any]) -> None:
    (key,) = settings
    error = problem(**settings, origins={key: "here"})
    assert error.what.startswith(key)
    assert error.where == "here"
    assert error.hint


def test_batch_sizes_may_differ_by_worker(wording: Wording) -> None:
    assert plan(batch_size=(8, 4)).batch_sizes == (8, 4)
    assert plan(batch_size=16, num_workers=3).batch_sizes == (16, 16, 16)
    wording(problem(batch_size=(1, 2, 3)).what)
    wording(problem(mode="ddp", batch_size=(8, 4)).what)


def test_the_options_of_the_modes_have_defaults() -> None:
    assert plan(mode="ssp").strategy == StrategyOptions(staleness=3)
    assert plan(mode="ssp", staleness="inf").strategy == StrategyOptions(staleness=None)
    assert plan(mode="localsgd").strategy == StrategyOptions(sync_every=8)
    assert plan(mode="ssgd").strategy == StrategyOptions()


@pytest.mark.parametrize(
    ("settings", "readers"),
    [
        ({"staleness": 2}, "ssp, dssp"),
        ({"staleness_range": 2}, "dssp"),
        ({"elasticity": 0.5}, "easgd"),
        ({"clients_per_round": 0.5}, "fedavg"),
        ({"sync_every": 2}, "easgd, localsgd, fedavg, diloco, adaptive"),
        ({"post_local_after": 2}, "localsgd"),
        ({"average_optimizer_state": False}, "localsgd"),
        ({"outer_lr": 0.5}, "diloco"),
        ({"backup_workers": 1}, "backup"),
        ({"asgd": "dc"}, "asgd"),
    ],
)
def test_an_option_that_the_mode_does_not_read_is_refused(
    settings: dict[str, Any], readers: str, wording: Wording
) -> None:
    (key,) = settings
    error = problem(mode="ssgd", **settings)
    assert key in error.what
    assert error.hint.endswith(readers)
    wording(error.what)


def test_a_mode_of_your_own_reads_whatever_it_likes() -> None:
    known = Facts(modules=frozenset({"mine"}))
    own = plan(known, mode="mine:Mode", staleness=2, sync_every=4, backup_workers=1, transport="tcp")
    assert own.strategy == StrategyOptions(staleness=2, sync_every=4, backup_workers=1)
    assert own.lr_scale == 1.0


def test_an_optimizer_brings_its_usual_rate() -> None:
    assert plan(optimizer="nesterov").optimizer == OptimizerChoice(name="nesterov", lr=0.1)
    assert plan(optimizer="adamw").optimizer == OptimizerChoice(name="adamw", lr=0.001)
    chosen = plan(optimizer="sgd", lr=0.3, weight_decay=0.01)
    assert chosen.optimizer == OptimizerChoice(name="sgd", lr=0.3, weight_decay=0.01)
    assert chosen.lr is None


def test_a_rate_alone_overrides_that_of_the_task() -> None:
    assert plan(lr=0.3).lr == 0.3
    assert plan(lr=0.3).optimizer is None


def test_the_rate_stays_unless_a_schedule_is_set(wording: Wording) -> None:
    assert plan().lr_schedule is None
    assert plan(lr_schedule="constant", lr_warmup=0).lr_schedule is None
    rising = RateSchedule(shape=RateShape.CONSTANT, warmup=5, steps=200)
    assert plan(lr_warmup=5).lr_schedule == rising
    falling = RateSchedule(shape=RateShape.COSINE, warmup=0, steps=50)
    assert plan(lr_schedule="cosine", steps=50).lr_schedule == falling
    wording(problem(lr_warmup=51, steps=50).what)


def test_weight_decay_needs_a_named_optimizer(wording: Wording) -> None:
    wording(problem(weight_decay=0.1).what)


def test_summed_updates_get_a_rate_divided_by_the_workers() -> None:
    assert plan(mode="asgd", num_workers=4).lr_scale == 0.25
    assert plan(mode="ssp", num_workers=4).lr_scale == 0.25
    assert plan(mode="ps", num_workers=4).lr_scale == 1.0


@pytest.mark.parametrize(("workers", "spares"), [(1, 0), (2, 1), (8, 1), (15, 1), (16, 2), (64, 8)])
def test_one_backup_worker_for_every_eight_by_default(workers: int, spares: int) -> None:
    usual = plan(mode="backup", num_workers=workers)
    assert usual.strategy.backup_workers == spares
    assert usual.gradients_per_update == workers - spares
    assert usual.lr_scale == 1.0
    none = plan(mode="backup", num_workers=workers, backup_workers=0)
    assert none.gradients_per_update == workers


def test_at_least_one_gradient_must_count(wording: Wording) -> None:
    error = problem(mode="backup", num_workers=4, backup_workers=4)
    assert "backup_workers to 1" in error.hint
    wording(error.what)
    wording(problem(mode="backup", backup_workers=-1).what)


@pytest.mark.parametrize(
    ("mode", "on_cpu", "on_gpu"),
    [
        ("single", Transport.NONE, Transport.NONE),
        ("ssgd", Transport.SHM, Transport.NCCL),
        ("localsgd", Transport.SHM, Transport.NCCL),
        ("ddp", Transport.GLOO, Transport.NCCL),
        ("asgd", Transport.SHM, Transport.TCP),
        ("ssp", Transport.SHM, Transport.TCP),
    ],
)
def test_the_transport_follows_from_mode_and_device(mode: str, on_cpu: Transport, on_gpu: Transport) -> None:
    assert plan(mode=mode).transport is on_cpu
    assert plan(TWO_GPUS, mode=mode).transport is on_gpu
    assert plan(TWO_GPUS, mode=mode).device is Device.CUDA


def test_workers_that_share_a_gpu_do_not_use_nccl(wording: Wording) -> None:
    assert plan(TWO_GPUS, num_workers=3).transport is Transport.GLOO
    wording(problem(TWO_GPUS, num_workers=3, transport="nccl").hint)


def test_an_impossible_transport_lists_those_that_work(wording: Wording) -> None:
    error = problem(mode="asgd", transport="gloo")
    wording(f"{error.what}\n{error.hint}")
    assert "gloo" in problem(mode="ddp", transport="shm").hint
    wording(problem(transport="nccl").hint)
    assert problem(mode="ssgd", transport="none").hint


def test_shared_memory_is_for_the_cpu(wording: Wording) -> None:
    wording(problem(TWO_GPUS, device="cuda", transport="shm").what)
    assert plan(TWO_GPUS, transport="shm").device is Device.CPU


def test_pairwise_averaging_shares_memory_and_saves_only_at_the_end(wording: Wording) -> None:
    result = plan(TWO_GPUS, mode="adpsgd")
    assert (result.device, result.transport) == (Device.CPU, Transport.SHM)
    wording(problem(TWO_GPUS, mode="adpsgd", device="cuda").what)
    wording(problem(mode="adpsgd", checkpoint_every=5).what)
    virtual = plan(TWO_GPUS, mode="adpsgd", launcher="virtual")
    assert (virtual.device, virtual.transport) == (Device.CUDA, Transport.NONE)


def test_the_graph_follows_from_how_one_gossips(wording: Wording) -> None:
    assert plan(mode="gossip").strategy.topology is Topology.RING
    assert plan(mode="gossip", gossip="push-sum").strategy.topology is Topology.EXPONENTIAL
    assert plan(mode="gossip", gossip="push-sum", topology="star").strategy.topology is Topology.STAR
    for text in ({"mode": "gossip"}, {"mode": "gossip", "gossip": "diffusion"}, {"mode": "adpsgd"}):
        wording(problem(**text, topology="exponential").what)
    wording(problem(mode="adpsgd", gossip="push-sum").what)
    wording(problem(mode="ssgd", topology="ring").what)


def test_cuda_needs_a_gpu(wording: Wording) -> None:
    wording(problem(device="cuda").what)
    assert plan(TWO_GPUS, device="cpu").device is Device.CPU


@pytest.mark.parametrize(
    "rule",
    [
        StragglerRule(worker=2, factor=3),
        StragglerRule(worker=-1, factor=3),
        StragglerRule(factor=0.5),
        StragglerRule(factor=float("nan")),
        StragglerRule(delay_s=-1),
        StragglerRule(factor=2, probability=0),
        StragglerRule(factor=2, probability=1.5),
        StragglerRule(factor=2, first_step=-1),
        StragglerRule(factor=2, first_step=9, end_step=9),
    ],
)
def test_a_wrong_straggler_is_one_problem_at_its_place(rule: StragglerRule, wording: Wording) -> None:
    fine = StragglerRule(worker=1, factor=2)
    error = problem(straggler=(fine, rule), origins={"straggler": "t.yaml:1", "straggler[1]": "t.yaml:3"})
    assert error.where == "t.yaml:3"
    wording(error.what)


def test_a_moving_bound_needs_a_lower_end(wording: Wording) -> None:
    error = problem(mode="dssp", staleness="inf")
    assert "--mode asgd" in error.hint
    wording(error.what)


def test_an_exchange_must_not_throw_worker_and_centre_past_each_other(wording: Wording) -> None:
    error = problem(mode="easgd", num_workers=2, elasticity=2.5)
    assert "2.5" in error.what
    wording(error.what)
    assert plan(mode="easgd", num_workers=2, elasticity=2.0).strategy.elasticity == 2.0


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5])
def test_clients_are_a_part_of_the_workers(fraction: float, wording: Wording) -> None:
    error = problem(mode="fedavg", clients_per_round=fraction)
    assert str(fraction) in error.what
    wording(error.what)


def test_dssp_easgd_and_fedavg_begin_with_their_usual_settings() -> None:
    assert plan(mode="dssp").strategy.staleness == 3
    assert plan(mode="dssp").strategy.staleness_range == 4
    assert plan(mode="dssp").lr_scale == 0.5
    assert (plan(mode="easgd").strategy.sync_every, plan(mode="easgd").strategy.elasticity) == (8, 0.9)
    assert plan(mode="easgd").lr_scale == 1.0
    assert plan(mode="fedavg").strategy.clients_per_round == 1.0
