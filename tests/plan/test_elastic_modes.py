"""Plans of modes whose workers come and go, and the settings that such a plan refuses."""

from dataclasses import replace

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.plan import Device, Elastic, Plan, StrategyOptions
from paceline.plan.remarks import remarks
from paceline.plan.resolve import resolve
from paceline.plan.schedule import is_whole, longest_commit
from paceline.sync.adaptive_setting import Allowed

FACTS = Facts()
STREAMING = StrategyOptions(sync_every=4, fragments=2, sync_delay=1)


def plan_of(**options: object) -> Plan:
    return resolve(TrainConfig(elastic=True, steps=20, **options), FACTS)  # type: ignore[arg-type]  # their own names


def refused(**options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(**options)
    return " ".join(problem.what for problem in caught.value.problems)


def test_an_update_of_backup_counts_workers_and_not_shards(wording: Wording) -> None:
    plan = plan_of(mode="backup", num_workers=4, shards=8)
    assert (plan.num_workers, plan.gradients_per_update) == (8, 3)
    wording(refused(mode="backup", num_workers=4, shards=8, backup_workers=4))


def test_an_option_that_a_mode_already_implies_is_refused(wording: Wording) -> None:
    wording(refused(mode="adaptive", on_slow="rebalance"))
    wording(refused(mode="backup", on_slow="replace"))


def test_the_replacements_of_an_hour_are_the_users_choice() -> None:
    config = TrainConfig(elastic=True, steps=20, num_workers=2)
    for number in (0, 3):
        elastic = resolve(replace(config, max_replacements=number), Facts()).elastic
        assert elastic is not None
        assert elastic.restarts == number


WITH_GPU = Facts(cuda_devices=1)


def test_an_elastic_run_uses_a_gpu_where_its_means_are_exact() -> None:
    for mode in ("ssgd", "localsgd", "diloco", "fedavg", "adaptive"):
        plan = resolve(TrainConfig(elastic=True, steps=20, mode=mode, num_workers=2), WITH_GPU)
        assert plan.device is Device.CUDA, mode
    for options in ({"mode": "asgd"}, {"mode": "ddp"}, {"mode": "ssgd", "compress": "fp16"}):
        config = TrainConfig(elastic=True, steps=20, num_workers=2, **options)  # type: ignore[arg-type]  # names
        assert resolve(config, WITH_GPU).device is Device.CPU, options
        with pytest.raises(ConfigError):
            resolve(replace(config, device="cuda"), WITH_GPU)


def test_a_commit_is_as_long_as_a_round_may_be() -> None:
    four = StrategyOptions(sync_every=4)
    assert longest_commit(small_plan("ssgd", strategy=four)) == 1
    assert longest_commit(small_plan("adaptive", strategy=four)) == 4
    assert longest_commit(small_plan("adaptive", strategy=replace(four, adaptive=Allowed.BATCH))) == 1
    assert longest_commit(small_plan("fedavg", strategy=four)) == 1  # it counts rounds


def test_streaming_commits_wherever_a_fragment_is_averaged() -> None:
    plan = small_plan("diloco", strategy=STREAMING, steps=11)
    assert [result for result in range(12) if is_whole(plan, result)] == [0, 2, 4, 6, 8, 10, 11]


def test_the_plan_of_an_elastic_run_states_the_consequences(wording: Wording) -> None:
    crew = Elastic(workers=3, min_workers=1, max_workers=4)
    adaptive = small_plan("adaptive", num_workers=4, elastic=crew)
    wording("\n".join(remarks(adaptive)))
    some = StrategyOptions(sync_every=4, clients_per_round=0.5)
    fedavg = small_plan("fedavg", num_workers=4, strategy=some, elastic=crew)
    wording("\n".join(remarks(fedavg)))
