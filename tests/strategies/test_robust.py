"""Training with Byzantine workers, in virtual time and with real processes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import distance, real, resumed, virtual, virtual_hash
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, PacelineError, TrainingError
from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import Dtype, Launcher, Plan, StrategyOptions, Transport
from paceline.strategies.robust import builtin_aggregate
from paceline.sync.fault_rules import Attack, ByzantineRule
from paceline.worker.entry.virtual import run_virtual
from paceline.worker.replay.schedule import replay

GARBAGE = (ByzantineRule(worker=3, attack=Attack.GARBAGE),)
WAYS = ("median", "trimmed-mean", "krum")
HERE = "tests.strategies.test_robust"


def robust_plan(mode: str, way: str, **changes: object) -> Plan:
    return small_plan(
        mode,
        **{
            "num_workers": 5,
            "strategy": StrategyOptions(aggregate=way),
            "byzantine": GARBAGE,
            **changes,
        },
    )


def digits_loss(way: str, launcher: LocalLauncher, folder: Path) -> float:
    """8 real processes, one of which sends garbage."""
    plan = robust_plan(
        "ssgd",
        way,
        task="digits",
        num_workers=8,
        steps=120,
        batch_sizes=(16,) * 8,
        dtype=Dtype.FLOAT32,
        lr=0.5,
    )
    run = real(plan, folder / way, launcher)
    assert run.sha256, "all replicas hold the same bits"
    metrics = run.result["metrics"]
    assert isinstance(metrics, dict)
    return float(str(metrics["test_loss"]))


def test_one_garbage_worker_of_eight_ruins_a_mean_and_nothing_else(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    losses = {way: digits_loss(way, launcher, tmp_path) for way in ("mean", "krum", "trimmed-mean")}
    assert losses["krum"] < 1.0
    assert losses["trimmed-mean"] < 0.7
    assert not losses["mean"] < 2.3, "no better than guessing among ten digits, or NaN"


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.GLOO, Transport.TCP])
def test_real_processes_end_with_the_bits_of_virtual_time_and_can_be_replayed(
    transport: Transport, launcher: LocalLauncher, tmp_path: Path
) -> None:
    mode = "ps" if transport is Transport.TCP else "ssgd"
    plan = robust_plan(mode, "krum", transport=transport)
    run = real(plan, tmp_path, launcher)
    assert run.sha256 == virtual_hash(plan)
    assert replay(plan, run.history, run.sha256).is_equal


def test_the_virtual_launcher_ends_with_the_same_bits(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = robust_plan("ssgd", "trimmed-mean")
    in_turns = replace(plan, launcher=Launcher.VIRTUAL, transport=Transport.NONE, pace_s=0.01)
    assert real(in_turns, tmp_path, launcher).sha256 == virtual_hash(plan)


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_a_stopped_and_resumed_run_ends_with_the_same_bits(
    mode: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = robust_plan(mode, "trimmed-mean", steps=60, pace_s=0.005)
    stopped = real(plan, tmp_path, launcher, stop_at=20)
    assert stopped.result["stopped_early"]
    assert resumed(tmp_path, launcher).sha256 == virtual_hash(plan)


def test_the_bytes_are_those_of_a_gather() -> None:
    run = virtual(robust_plan("ssgd", "median"))
    vector = run.replicas[0].arena.state.nbytes
    assert {(r.bytes_out, r.bytes_in) for rows in run.history.steps.values() for r in rows} == {
        (4 * vector, 4 * vector)
    }


SEEN: list[torch.Tensor] = []


def seeing(stack: torch.Tensor) -> torch.Tensor:
    SEEN.append(stack)
    return stack[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_buffers_are_combined_by_the_same_rule_but_by_themselves(mode: str, way: str) -> None:
    SEEN.clear()
    one_step = {"steps": 1, "task_options": {"batch_norm": True}}
    virtual(robust_plan(mode, f"{HERE}:seeing", **one_step))
    gradients, buffers = SEEN[:2]
    assert gradients.shape == (5, 3 * 5 + 5 + 2 * 5 + 5 * 2 + 2)  # without padding
    assert buffers.shape == (5, 2 * 5)
    rule = builtin_aggregate(way, 1)
    assert rule is not None
    state = virtual(robust_plan(mode, way, **one_step)).final_state()
    assert torch.equal(torch.cat([state["1.running_mean"], state["1.running_var"]]), rule(buffers))


def test_a_stop_request_is_received_whichever_worker_has_it() -> None:
    run = virtual(robust_plan("ssgd", "median", steps=40), stops_after={4: 5})
    assert {len(rows) for rows in run.history.steps.values()} == {5}


def middle(stack: torch.Tensor) -> torch.Tensor:
    return stack.sort(dim=0).values[len(stack) // 2]


def wrong_shape(stack: torch.Tensor) -> torch.Tensor:
    return stack


def wrong_type(stack: torch.Tensor) -> list[float]:
    return [0.0] * stack.shape[1]


def fails_at_once(stack: torch.Tensor) -> torch.Tensor:
    return stack[0].float()


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_a_function_of_ones_own_is_used(mode: str) -> None:
    own = virtual(robust_plan(mode, f"{HERE}:middle")).final_state()
    assert distance(own, virtual(robust_plan(mode, "median")).final_state()) == 0


@pytest.mark.parametrize("name", ["wrong_shape", "wrong_type", "fails_at_once"])
def test_a_function_that_returns_something_else_is_an_error(name: str, wording: Wording) -> None:
    with wording.raises(PacelineError):
        virtual(robust_plan("ssgd", f"{HERE}:{name}"))


@pytest.mark.parametrize("path", [f"{HERE}:nothing", "no_such_module:f", f"{HERE}:HERE"])
def test_a_function_that_is_not_there_is_a_config_error(path: str) -> None:
    with pytest.raises(ConfigError):
        virtual(robust_plan("ssgd", path))


@pytest.mark.parametrize("mode", ["ssgd", "ps"])
def test_when_every_worker_sends_nan_the_run_reports_it(mode: str, wording: Wording) -> None:
    plan = robust_plan(mode, "median", byzantine=(ByzantineRule(attack=Attack.NAN),))
    messages = [str(error) for error in run_virtual(plan).errors]
    (reason,) = {message for message in messages if "NaN" in message}  # of the others, who waited in vain
    wording(reason)


def test_unequal_batches_are_refused_because_a_rule_has_no_weights(wording: Wording) -> None:
    with wording.raises(PacelineError):
        virtual(robust_plan("ssgd", "median", batch_sizes=(1, 2, 3, 4, 5)))


def test_a_server_does_not_continue_with_fewer_than_its_rule_needs(wording: Wording) -> None:
    with wording.raises(TrainingError):
        virtual(robust_plan("ps", "krum"), leaves_after={2: 4})


@pytest.mark.parametrize("mode", ["single", "ssgd", "ps", "asgd", "ssp", "localsgd", "diloco"])
def test_attacks_happen_in_every_mode_and_replay_bit_by_bit(mode: str) -> None:
    rules = (
        ByzantineRule(attack=Attack.GARBAGE, scale=1.0, probability=0.4),
        ByzantineRule(worker=0, attack=Attack.SIGN_FLIP, first_step=3, end_step=6),
    )
    honest = small_plan(mode, pace_s=0.01)
    bad = replace(honest, byzantine=rules)
    run = virtual(bad)
    assert distance(run.final_state(), virtual(honest).final_state()) > 1e-3
    verdict = replay(bad, run.history, virtual_hash(bad))
    assert verdict.is_equal, verdict.parted
