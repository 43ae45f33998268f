"""Does the explanation say what will happen, the surprising parts above all?"""

from dataclasses import replace

import pytest

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


def said(plan: Plan, topic: str) -> str:
    return " | ".join(line.text for line in explain(plan) if line.topic == topic)


def test_the_work_is_counted_in_gradients_and_samples() -> None:
    assert said(plan_for("ssgd"), "work") == (
        "each worker computes 200 gradients of 32 samples: 128 samples per step,"
        " 800 gradients and 25,600 samples in all"
    )


@pytest.mark.parametrize("mode", ["asgd", "ssp", "dssp"])
def test_a_divided_rate_is_explained(mode: str) -> None:
    assert "divided by 4: each gradient is applied alone" in said(plan_for(mode), "rate")


def test_an_averaged_rate_is_not_divided() -> None:
    assert "divided" not in said(plan_for("ssgd"), "rate")


@pytest.mark.parametrize("mode", ["ssp", "dssp", "localsgd", "fedavg"])
def test_against_a_lasting_straggler_these_are_no_faster_than_ssgd(mode: str) -> None:
    assert "the same long-run rate as ssgd, N / t_max" in said(plan_for(mode, ALWAYS), "remark")
    assert "long-run rate" not in said(plan_for(mode, SOMETIMES), "remark")


def test_ssgd_waits_for_the_slow_one_and_asgd_does_not() -> None:
    assert "every step waits for the slowest" in said(plan_for("ssgd", ALWAYS), "remark")
    assert "go on without waiting" in said(plan_for("asgd", ALWAYS), "remark")


def test_backup_says_what_counts_what_is_thrown_away_and_whom_it_does_not_wait_for() -> None:
    remarks = said(plan_for("backup", ALWAYS), "remark")
    assert "each update is the mean of the first 3 of 4 gradients of a step" in remarks
    assert "is thrown away" in remarks
    assert "none is lost" in remarks
    assert "267 updates with the full rate where ssgd makes 200" in remarks
    assert "worker 1 is always slow: the others go on without it" in remarks
    assert "whoever is free takes the next" in said(plan_for("backup"), "work")
    assert "divided" not in said(plan_for("backup"), "rate")
    assert "nor would backup with backup_workers 1" in said(plan_for("ssgd", ALWAYS), "remark")


def test_backup_says_when_there_are_more_slow_workers_than_spares() -> None:
    both = (ALWAYS, replace(ALWAYS, worker=2))
    assert "backup_workers is only 1, so every update waits for a slow one; set it to 2" in said(
        plan_for("backup", *both), "remark"
    )
    none = replace(plan_for("backup"), strategy=StrategyOptions(backup_workers=0))
    assert "backup without backup_workers is ps" in said(none, "remark")


@pytest.mark.parametrize("allowed", Allowed)
def test_what_adaptive_may_do_is_said_before_it_does_it(allowed: Allowed) -> None:
    options = StrategyOptions(adaptive=allowed, sync_every=8)
    plan = replace(plan_for("adaptive", ALWAYS), strategy=options)
    assert "as much as its measured speed allows" in said(plan, "work")
    assert ("weighted by their samples" in said(plan, "travels")) == (allowed is not Allowed.LOCAL_STEPS)
    assert ("averaged after every 8 steps" in said(plan, "travels")) == (allowed is not Allowed.BATCH)
    assert ("not ssgd; --adaptive batch" in said(plan, "remark")) == (allowed is not Allowed.BATCH)
    coarse = replace(plan, batch_sizes=(4,) * 4)
    assert ("only coarsely" in said(coarse, "remark")) == (allowed is not Allowed.LOCAL_STEPS)
    assert "only coarsely" not in said(plan, "remark")


def test_unequal_batches_leave_adaptive_no_local_steps() -> None:
    assert "are not considered" in said(replace(plan_for("adaptive"), batch_sizes=(8, 16, 8, 8)), "remark")
    assert "are not considered" not in said(plan_for("adaptive"), "remark")


def test_a_rate_that_changes_is_said_in_words() -> None:
    plan = plan_for("ssgd")
    falling = RateSchedule(shape=RateShape.COSINE, warmup=20, steps=200)
    rate = said(replace(plan, lr_schedule=falling), "rate")
    assert "rising over the first 20 steps, falling to 0 along a cosine" in rate
    line = replace(falling, shape=RateShape.LINEAR, warmup=0)
    assert "rate, falling to 0 in a straight line" in said(replace(plan, lr_schedule=line), "rate")
    risen = replace(falling, shape=RateShape.CONSTANT)
    assert said(replace(plan, lr_schedule=risen), "rate").endswith("rising over the first 20 steps")
    assert "rising" not in said(plan, "rate")


def test_mean_staleness_of_asgd_is_announced() -> None:
    assert "mean staleness tends to N-1 = 3" in said(plan_for("asgd"), "remark")


def test_the_ends_of_ssp_are_named() -> None:
    ssp = plan_for("ssp")
    assert "(2*3+1)*(N-1) = 21" in said(ssp, "remark")
    assert "equals ssgd" in said(replace(ssp, strategy=StrategyOptions(staleness=0)), "remark")
    assert "is asgd" in said(replace(ssp, strategy=StrategyOptions(staleness=None)), "remark")


def test_localsgd_with_a_period_of_one_equals_ssgd_only_for_linear_optimizers() -> None:
    every_step = replace(plan_for("localsgd"), strategy=StrategyOptions(sync_every=1))
    assert "equals ssgd for sgd, momentum" in said(every_step, "remark")
    adam = replace(every_step, optimizer=OptimizerChoice(name="adam", lr=0.001))
    assert "does not equal ssgd here: adam" in said(adam, "remark")
    assert "does not equal ssgd here: clipping" in said(replace(every_step, clip_norm=1.0), "remark")


def test_gossip_says_what_travels_to_whom() -> None:
    assert "to 2 neighbours on a ring of 4, mixed before the update" in said(plan_for("gossip"), "travels")
    star = StrategyOptions(gossip=GossipVariant.DIFFUSION, topology=Topology.STAR)
    assert "to 1 to 3 neighbours on a star of 4, mixed after" in said(with_options("gossip", star), "travels")
    pushed = StrategyOptions(gossip=GossipVariant.PUSH_SUM, topology=Topology.EXPONENTIAL)
    assert "half of each worker's parameters" in said(with_options("gossip", pushed), "travels")
    assert "one random neighbour's on a ring of 4" in said(plan_for("adpsgd"), "travels")
    assert "whoever is free takes the next" in said(plan_for("adpsgd"), "work")


def test_gossip_waits_for_a_lasting_straggler_in_the_long_run_and_pairs_do_not() -> None:
    assert "the same long-run rate as ssgd, N / t_max" in said(plan_for("gossip", ALWAYS), "remark")
    assert "long-run rate" not in said(plan_for("gossip", SOMETIMES), "remark")
    assert "go on without waiting" in said(plan_for("adpsgd", ALWAYS), "remark")
    assert "staleness" not in said(plan_for("adpsgd"), "remark")


def test_gossip_says_when_news_has_reached_everybody_and_that_replicas_differ() -> None:
    assert "after 2 steps on this graph (ring)" in said(plan_for("gossip"), "remark")
    for mode in ("gossip", "adpsgd"):
        assert "their exact mean is the model of all" in said(plan_for(mode), "remark")
    complete = StrategyOptions(topology=Topology.COMPLETE)
    assert "complete graph is not ssgd" in said(with_options("gossip", complete), "remark")


def with_options(mode: str, options: StrategyOptions) -> Plan:
    return replace(plan_for(mode), strategy=options)


def test_one_worker_is_plain_training_in_every_mode() -> None:
    assert "plain sequential training" in said(plan_for("asgd", num_workers=1), "remark")


def test_a_resumed_easgd_run_is_announced_to_be_another_one() -> None:
    remarks = said(plan_for("easgd"), "remark")
    assert "only the centre is saved" in remarks
    assert "22.5% of their distance" in remarks
    assert "not plain sequential training" in said(plan_for("easgd", num_workers=1), "remark")
    assert "plain sequential training" not in said(plan_for("fedavg", num_workers=1), "remark")


def test_the_part_of_the_workers_that_is_drawn_is_announced() -> None:
    fedavg = plan_for("fedavg")
    assert "drawn" not in said(fedavg, "remark")
    half = replace(fedavg, strategy=replace(fedavg.strategy, clients_per_round=0.4))
    assert "2 of 4 workers are drawn for a round" in said(half, "remark")
    assert "begins anew in every round" in said(half, "remark")


def test_the_range_of_a_moving_bound_is_named() -> None:
    assert "more than 3 to 7 ahead of the slowest" in said(plan_for("dssp"), "remark")


def test_sharing_processors_is_pointed_out() -> None:
    lines = explain(plan_for("ssgd"), cpu_count=2)
    assert any("4 threads share 2 processors" in line.text for line in lines)
    assert not any("processors" in line.text for line in explain(plan_for("ssgd"), cpu_count=4))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (ALWAYS, "worker 1 takes 3 times as long, at every step"),
        (SOMETIMES, "every worker takes 10 times as long with probability 0.05, at every step"),
        (
            StragglerRule(worker=0, delay_s=0.05, first_step=100, end_step=200),
            "worker 0 is delayed by 50 ms, from step 100 until step 200",
        ),
        (
            StragglerRule(worker=0, factor=2, steps=(1, 2, 3)),
            "worker 0 takes 2 times as long, at 3 steps of the trace",
        ),
    ],
)
def test_a_straggler_in_words(rule: StragglerRule, words: str) -> None:
    assert describe_straggler(rule) == words


def test_who_is_slow_for_the_whole_run() -> None:
    assert persistent_stragglers(plan_for("ssgd", ALWAYS)) == (1,)
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(factor=3))) == ()  # all alike
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(worker=1, factor=3, end_step=50))) == ()
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(worker=1, factor=3, end_step=200))) == (1,)
    assert persistent_stragglers(plan_for("ssgd", StragglerRule(worker=2, delay_s=0.1))) == (2,)
