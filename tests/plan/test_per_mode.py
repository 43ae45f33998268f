"""Every mode gets the settings it reads, and the baseline does the same work with one worker."""

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.plan.resolve import config_for_mode, resolve, single_worker_plan, unused_settings
from paceline.sync.fault_rules import StragglerRule


def test_a_mode_gets_its_own_settings_and_no_others() -> None:
    config = TrainConfig(staleness=5, sync_every=4, num_workers=4)
    ssp, localsgd = (resolve(config_for_mode(config, mode), Facts()).strategy for mode in ("ssp", "localsgd"))
    assert ssp.staleness == 5
    assert localsgd.sync_every == 4
    assert resolve(config_for_mode(config, "ssgd"), Facts()).mode == "ssgd"


def test_a_setting_that_no_mode_reads_is_named() -> None:
    config = TrainConfig(staleness=5, sync_every=4)
    assert unused_settings(config, ["ssgd", "ssp"]) == ["sync_every"]
    assert unused_settings(config, ["ssp", "localsgd"]) == []
    assert unused_settings(config, ["mine:Own"]) == []  # it may read whatever it likes


def test_the_baseline_makes_the_same_steps_on_the_same_samples_in_the_time_of_all() -> None:
    slow = (StragglerRule(worker=1, factor=3.0), StragglerRule(probability=0.1, factor=2.0))
    config = TrainConfig(mode="asgd", num_workers=4, batch_size=8, steps=50, pace=0.01, straggler=slow)
    plan = resolve(config, Facts())
    single = single_worker_plan(plan)
    assert (single.mode, single.num_workers, single.batch_sizes) == ("single", 1, (32,))
    assert (single.steps, single.total_samples) == (plan.steps, plan.total_samples)
    assert single.pace_s == 0.04
    assert single.lr_scale == 1.0
    # A rule for one rank is about another worker; a rule for all workers slows this one too.
    assert single.stragglers == slow[1:]
