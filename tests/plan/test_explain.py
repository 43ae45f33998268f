"""The explanation of a plan says what will happen, the surprising parts above all."""

from dataclasses import replace

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.plan.describe import describe_straggler, persistent_stragglers
from paceline.plan.explain import explain
from paceline.plan.plan import GossipVariant, OptimizerChoice, Plan, StrategyOptions
from paceline.plan.resolve import resolve
from paceline.sync.adaptive_setting import Allowed
from paceline.sync.fault_rules import StragglerRule
from paceline.sync.schedule import RateSchedule, RateShape
from paceline.sync.topology import Topology

ALWAYS = StragglerRule(worker=1, factor=3)
SOMETIMES = StragglerRule(probability=0.05, factor=10)


def plan_for(mode: str, *rules: StragglerRule, num_workers: int = 4) -> Plan:
    return resolve(TrainConfig(mode=mode, num_workers=num_workers, straggler=rules), Facts())


def explained(plan: Plan, topic: str) -> str:
    return " | ".join(line.text for line in explain(plan) if line.topic == topic)


def test_the_work_is_counted_in_gradients_and_samples(wording: Wording) -> None:
    work = explained(plan_for("ssgd"), "work")
    assert "25,600" in work
    wording(work)


@pytest.mark.parametrize("mode", ["asgd", "ssp", "dssp"])
def test_a_divided_rate_is_explained(mode: str, wording: Wording) -> None:
    wording(explained(plan_for(mode), "rate"))


def test_an_averaged_rate_is_not_divided(wording: Wording) -> None:
    wording(explained(plan_for("ssgd"), "rate"))


@pytest.mark.parametrize("mode", ["ssp", "dssp", "localsgd", "fedavg"])
def test_against_a_lasting_straggler_these_are_no_faster_than_ssgd(mode: str, wording: Wording) -> None:
    always = explained(plan_for(mode, ALWAYS), "remark")
    assert "N / t_max" in always
    wording(always)
    sometimes = explained(plan_for(mode, SOMETIMES), "remark")
    assert "N / t_max" not in sometimes
    wording(sometimes)


def test_ssgd_waits_for_the_slow_one_and_asgd_does_not(wording: Wording) -> None:
    wording(explained(plan_for("ssgd", ALWAYS), "remark"))
    wording(explained(plan_for("asgd", ALWAYS), "remark"))


def test_backup_states_what_counts_what_is_discarded_and_which_workers_it_does_not_wait_for(
    wording: Wording,
) -> None:
    wording(explained(plan_for("backup", ALWAYS), "remark"))
    wording(explained(plan_for("backup"), "work"))
    wording(explained(plan_for("backup"), "rate"))
    waits = explained(plan_for("ssgd", ALWAYS), "remark")
    assert "backup_workers 1" in waits
    wording(waits)


def test_backup_reports_more_slow_workers_than_spares(wording: Wording) -> None:
    both = (ALWAYS, replace(ALWAYS, worker=2))
    wording(explained(plan_for("backup", *both), "remark"))
    none = replace(plan_for("backup"), strategy=StrategyOptions(backup_workers=0))
    wording(explained(none, "remark"))


@pytest.mark.parametrize("allowed", Allowed)
def test_what_adaptive_may_do_is_stated_in_advance(allowed: Allowed, wording: Wording) -> None:
    options = StrategyOptions(adaptive=allowed, sync_every=8)
    plan = replace(plan_for("adaptive", ALWAYS), strategy=options)
    assert ("--adaptive batch" in explained(plan, "remark")) == (allowed is not Allowed.BATCH)
    wording(explained(plan, "work"))
    wording(explained(plan, "travels"))
    wording(explained(plan, "remark"))
    coarse = explained(replace(plan, batch_sizes=(4,) * 4), "remark")
    assert (coarse != explained(plan, "remark")) == (allowed is not Allowed.LOCAL_STEPS)
    wording(coarse)


def test_unequal_batches_leave_adaptive_no_local_steps(wording: Wording) -> None:
    unequal = explained(replace(plan_for("adaptive"), batch_sizes=(8, 16, 8, 8)), "remark")
    equal = explained(plan_for("adaptive"), "remark")
    assert unequal != equal
    wording(unequal)
    wording(equal)


def test_a_rate_that_changes_is_described(wording: Wording) -> None:
    plan = plan_for("ssgd")
    falling = RateSchedule(shape=RateShape.COSINE, warmup=20, steps=200)
    line = replace(falling, shape=RateShape.LINEAR, warmup=0)
    risen = replace(falling, shape=RateShape.CONSTANT)
    for schedule in (falling, line, risen, None):
        wording(explained(replace(plan, lr_schedule=schedule), "rate"))


def test_mean_staleness_of_asgd_is_announced(wording: Wording) -> None:
    remark = explained(plan_for("asgd"), "remark")
    assert "N-1 = 3" in remark
    wording(remark)


def test_the_ends_of_ssp_are_named(wording: Wording) -> None:
    ssp = plan_for("ssp")
    assert "(2*3+1)*(N-1) = 21" in explained(ssp, "remark")
    wording(explained(replace(ssp, strategy=StrategyOptions(staleness=0)), "remark"))
    wording(explained(replace(ssp, strategy=StrategyOptions(staleness=None)), "remark"))


def test_localsgd_with_a_period_of_one_equals_ssgd_only_for_linear_optimizers(wording: Wording) -> None:
    every_step = replace(plan_for("localsgd"), strategy=StrategyOptions(sync_every=1))
    adam = replace(every_step, optimizer=OptimizerChoice(name="adam", lr=0.001))
    clipped = replace(every_step, clip_norm=1.0)
    for plan in (every_step, adam, clipped):
        wording(explained(plan, "remark"))


def test_gossip_states_what_is_sent_to_which_workers(wording: Wording) -> None:
    star = StrategyOptions(gossip=GossipVariant.DIFFUSION, topology=Topology.STAR)
    pushed = StrategyOptions(gossip=GossipVariant.PUSH_SUM, topology=Topology.EXPONENTIAL)
    for plan in (
        plan_for("gossip"),
        with_options("gossip", star),
        with_options("gossip", pushed),
        plan_for("adpsgd"),
    ):
        wording(explained(plan, "travels"))
    wording(explained(plan_for("adpsgd"), "work"))


def test_gossip_waits_for_a_lasting_straggler_in_the_long_run_and_pairs_do_not(wording: Wording) -> None:
    assert "N / t_max" in explained(plan_for("gossip", ALWAYS), "remark")
    assert "N / t_max" not in explained(plan_for("gossip", SOMETIMES), "remark")
    for plan in (
        plan_for("gossip", ALWAYS),
        plan_for("gossip", SOMETIMES),
        plan_for("adpsgd", ALWAYS),
        plan_for("adpsgd"),
    ):
        wording(explained(plan, "remark"))


def test_gossip_states_when_an_update_has_reached_all_workers_and_that_replicas_differ(
    wording: Wording,
) -> None:
    complete = StrategyOptions(topology=Topology.COMPLETE)
    for plan in (plan_for("gossip"), plan_for("adpsgd"), with_options("gossip", complete)):
        wording(explained(plan, "remark"))


def with_options(mode: str, options: StrategyOptions) -> Plan:
    return replace(plan_for(mode), strategy=options)


def test_one_worker_is_plain_training_in_every_mode(wording: Wording) -> None:
    wording(explained(plan_for("asgd", num_workers=1), "remark"))


def test_a_resumed_easgd_run_is_announced_to_be_another_one(wording: Wording) -> None:
    remarks = explained(plan_for("easgd"), "remark")
    assert "22.5%" in remarks
    wording(remarks)
    wording(explained(plan_for("easgd", num_workers=1), "remark"))
    wording(explained(plan_for("fedavg", num_workers=1), "remark"))


def test_the_part_of_the_workers_that_is_drawn_is_announced(wording: Wording) -> None:
    fedavg = plan_for("fedavg")
    wording(explained(fedavg, "remark"))
    half = replace(fedavg, strategy=replace(fedavg.strategy, clients_per_round=0.4))
    assert "2 of 4" in explained(half, "remark")
    wording(explained(half, "remark"))


def test_the_range_of_a_moving_bound_is_named(wording: Wording) -> None:
    remark = explained(plan_for("dssp"), "remark")
    assert "3 to 7" in remark
    wording(remark)


def test_sharing_processors_is_pointed_out(wording: Wording) -> None:
    enough = explain(plan_for("ssgd"), cpu_count=4)
    shared = explain(plan_for("ssgd"), cpu_count=2)
    (remark,) = set(shared) - set(enough)
    assert not set(enough) - set(shared)
    wording(remark.text)


@pytest.mark.parametrize(
    "rule",
    [
        ALWAYS,
        SOMETIMES,
        StragglerRule(worker=0, delay_s=0.05, first_step=100, end_step=200),
        StragglerRule(worker=0, factor=2, steps=(1, 2, 3)),
    ],
)
def test_a_straggler_is_described(rule: StragglerRule, wording: Wording) -> None:
    wording(describe_straggler(rule))


def test_a_worker_that_is_slow_for_the_whole_run_is_described() -> None:
    assert persistent_stragglers(plan_for("ssgd", ALWAYS)) == (1,)
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(factor=3))) == ()  # all alike
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(worker=1, factor=3, end_step=50))) == ()
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(worker=1, factor=3, end_step=200))) == (1,)
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(worker=2, delay_s=0.1))) == (2,)
