"""The contestants of `paceline benchmark torch`, which all do the same work."""

import pytest
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.torch_layout import Layout, TorchRequest, lay_out
from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.plan import Launcher, Transport

FACTS = Facts(modules=frozenset({"ray"}))


def laid_out(config: TrainConfig, *modes: str, launchers: tuple[str, ...] = ("local", "ray")) -> Layout:
    return lay_out(TorchRequest(config=config, modes=modes or ("ssgd",), launchers=launchers), FACTS)


def problems(config: TrainConfig, *modes: str, launchers: tuple[str, ...] = ("local",)) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        laid_out(config, *modes, launchers=launchers)
    return [problem.what for problem in caught.value.problems]


def test_all_contestants_make_the_same_steps_over_the_same_samples() -> None:
    layout = laid_out(
        TrainConfig(task="xor", steps=30, num_workers=4, batch_size=100, seed=7), "ssgd", "asgd"
    )
    plans = [layout.alone, layout.together, *(own.plan for own in layout.ours)]
    assert {plan.global_batch for plan in plans} == {100}
    assert {plan.total_samples for plan in plans} == {3000}
    assert {plan.seed for plan in plans} == {7}
    assert layout.alone.batch_sizes == (100,)
    assert layout.together.batch_sizes == (25, 25, 25, 25)


def test_paceline_runs_are_named_by_mode_and_launcher_and_the_first_on_ray_is_the_subject() -> None:
    layout = laid_out(TrainConfig(task="xor"), "ssgd", "asgd")
    assert [own.name for own in layout.ours] == ["ssgd", "ssgd-ray", "asgd", "asgd-ray"]
    assert layout.subject == "ssgd-ray"
    assert layout.address == "local"
    assert layout.together.ray is None
    assert layout.together.launcher is Launcher.LOCAL


def test_without_ray_no_contestant_uses_it() -> None:
    layout = laid_out(TrainConfig(task="xor"), launchers=("local",))
    assert (layout.address, layout.peers, layout.subject) == (None, ("ddp",), "ssgd")
    with_ray = TorchRequest(config=TrainConfig(task="xor"), launchers=("local",), peers=("ray",))
    assert lay_out(with_ray, FACTS).address == "local"


def test_paceline_single_takes_the_whole_batch_and_paceline_ddp_has_its_own_files() -> None:
    layout = laid_out(TrainConfig(task="xor", batch_size=64), "single", "ddp", launchers=("local",))
    (single, ddp) = layout.ours
    assert (single.plan.num_workers, single.plan.batch_sizes) == (1, (64,))
    assert (ddp.name, ddp.title) == ("paceline-ddp", "paceline ddp")
    assert layout.together.num_workers == 2


def test_a_transport_is_for_this_machine_only() -> None:
    layout = laid_out(TrainConfig(task="xor", transport="shm"))
    assert [own.plan.transport for own in layout.ours] == [Transport.SHM, Transport.GLOO]


def test_what_cannot_be_dealt_evenly_is_refused_with_what_can(wording: Wording) -> None:
    config = TrainConfig(task="xor", num_workers=3, batch_size=64)
    (problem,) = problems(config)
    wording(problem)


def test_an_option_that_not_all_contestants_have_is_refused(wording: Wording) -> None:
    config = TrainConfig(task="xor", clip_norm=1.0, pace=0.01)
    result = problems(config)
    assert len(result) == 2
    wording("\n".join(result))


def test_two_modes_of_one_name_are_refused_since_only_one_would_take_part(wording: Wording) -> None:
    request = TorchRequest(config=TrainConfig(task="xor"), modes=("ssgd", "mine:Ssgd"), launchers=("local",))
    with wording.raises(ConfigError):
        lay_out(request, Facts(modules=frozenset({"mine"})))


def test_unknown_launchers_are_refused(wording: Wording) -> None:
    (problem,) = problems(TrainConfig(task="xor"), launchers=("local", "slurm"))
    assert "'slurm'" in problem
    wording(problem)
