"""The task sp500 keeps time in order, scales by the training part only, and counts correctly."""

import json
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import distance, virtual, virtual_hash
from tests.fixtures.tasks.closes import made_up
from tests.fixtures.wording import Wording

from paceline.core.clock import SystemClock
from paceline.core.errors import ConfigError
from paceline.datasets.sp500 import npz_bytes, prepare
from paceline.plan.plan import Dtype, Option
from paceline.sync.assignment import WorkUnit
from paceline.tasks.load import load_task
from paceline.tasks.sp500.task import Confusion, Sp500Task, as_svg
from paceline.worker.gradient import GradientSource
from paceline.worker.replay.schedule import replay

WINDOW = 8


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("sp500") / "s.npz"
    prepare(made_up(400), out, window=WINDOW, test_fraction=0.2)
    return str(out)


def written(path: Path, **arrays: NDArray[np.generic]) -> str:
    (path / "s.npz").write_bytes(npz_bytes(arrays))
    return str(path / "s.npz")


def columns(count: int, *, seed: int = 0, window: int = 3) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.normal(2.0, 5.0, (count, window, 2)).astype(np.float32), rng.integers(0, 2, count)


def problem(path: str, **options: Option) -> str:
    with pytest.raises(ConfigError) as caught:
        Sp500Task(seed=0, npz_path=path, **options)  # type: ignore[arg-type]  # wrong ones, too
    assert all(p.hint for p in caught.value.problems)
    return caught.value.what


def test_validation_is_the_latest_part_and_days_before_it_are_dropped(tmp_path: Path) -> None:
    x, y = columns(100)
    path = written(tmp_path, X_train=x, y_train=y, X_test=x[:5], y_test=y[:5])
    task = Sp500Task(seed=0, npz_path=path, norm="none", valid_from_train=0.1)
    every = np.arange(len(task.samples()))
    windows, ups = task.samples().batch(every)
    assert len(every) == 100 - 10 - 3
    assert np.array_equal(windows.numpy(), x[:87])
    assert np.array_equal(ups.numpy(), y[:87])
    assert len(Sp500Task(seed=0, npz_path=path, valid_from_train=0).samples()) == 100


def test_the_scale_is_that_of_the_training_part_alone(tmp_path: Path) -> None:
    x, y = columns(100)
    x[87:] += 1000.0  # what is dropped, validation
    path = written(tmp_path, X_train=x, y_train=y, X_test=x[:5] - 1000.0, y_test=y[:5])
    task = Sp500Task(seed=0, npz_path=path)
    windows, _ = task.samples().batch(np.arange(87))
    assert torch.allclose(windows.mean((0, 1)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(windows.std((0, 1), unbiased=False), torch.ones(2), atol=1e-5)
    mean, deviation = x[:87].mean((0, 1)), x[:87].std((0, 1))
    by_hand = torch.as_tensor((x[:5] - mean) / deviation)
    assert torch.allclose(windows[:5], by_hand, atol=1e-4)


def test_a_feature_that_never_changes_does_no_harm(tmp_path: Path) -> None:
    x, y = columns(50)
    x[:, :, 1] = 3.0
    path = written(tmp_path, X_train=x, y_train=y, X_test=x, y_test=y)
    windows, _ = Sp500Task(seed=0, npz_path=path).samples().batch(np.arange(10))
    assert torch.isfinite(windows).all()


@pytest.mark.parametrize(("shuffle_train", "is_in_order"), [(False, True), (True, False)])
def test_samples_are_taken_in_the_order_of_time_unless_they_are_to_be_mixed(
    npz: str, shuffle_train: bool, is_in_order: bool
) -> None:
    options: dict[str, Option] = {"npz_path": npz, "shuffle_train": shuffle_train}
    plan = small_plan("ssgd", task="sp500", task_options=options)
    task = load_task("sp500", seed=plan.seed, options=options)
    source = GradientSource(plan, task, torch.device("cpu"), SystemClock())
    taken = source.batch_of(WorkUnit(1, 0))  # the second worker's first four
    expected = task.samples().batch(np.arange(4, 8))
    assert isinstance(taken, tuple)
    assert isinstance(expected, tuple)
    assert all(torch.equal(a, b) for a, b in zip(taken, expected, strict=True)) is is_in_order


def test_it_is_an_lstm_of_the_requested_size(npz: str) -> None:
    model = Sp500Task(seed=0, npz_path=npz, hidden=64).model()
    features, hidden = 6, 64
    in_lstm = 4 * hidden * (features + hidden + 2)
    assert sum(p.numel() for p in model.parameters()) == in_lstm + hidden + 1
    deep = Sp500Task(seed=0, npz_path=npz, hidden=4, layers=2).model()
    assert deep(torch.zeros(3, WINDOW, features)).shape == (3,)


def test_metrics_follow_from_the_counts(npz: str) -> None:
    task = Sp500Task(seed=0, npz_path=npz, threshold=0.0)
    values = task.metrics(task.model().eval())
    assert values["recall"] == 1.0  # at threshold 0 every day is said to rise
    assert values["test_accuracy"] == values["always_up"] == values["precision"]
    assert (values["tn"], values["fn"]) == (0.0, 0.0)


def test_parts_of_the_validation_add_up_to_the_whole(npz: str) -> None:
    task = Sp500Task(seed=0, npz_path=npz)
    model, count = task.model().eval(), task.validation_size()
    with torch.no_grad():
        whole = task.validate(model, range(count))
        parts = [task.validate(model, rows) for rows in (range(5), range(5, 6), range(6, count))]
    for name, value in whole.items():
        assert sum(part[name] for part in parts) == pytest.approx(value, rel=1e-5)


def test_without_a_validation_part_there_is_nothing_to_validate_by(npz: str, wording: Wording) -> None:
    with wording.raises(ConfigError):
        Sp500Task(seed=0, npz_path=npz, valid_from_train=0).validation_size()


def test_four_counts_by_hand() -> None:
    text = torch.tensor([True, True, True, False, False, False])
    true = torch.tensor([True, True, False, True, False, False])
    confusion = Confusion.of(text, true)
    assert confusion.matrix == [[2, 1], [1, 2]]
    values = confusion.metrics()
    assert values["test_accuracy"] == pytest.approx(4 / 6)
    assert values["precision"] == values["recall"] == values["f1"] == pytest.approx(2 / 3)
    assert values["always_up"] == 0.5
    assert Confusion.from_metrics(values) == confusion
    assert Confusion(0, 0, 0, 0).metrics()["f1"] == 0.0


def test_the_matrix_is_left_as_numbers_and_as_a_picture(npz: str) -> None:
    task = Sp500Task(seed=0, npz_path=npz, save_cm=True)
    metrics = task.metrics(task.model().eval())
    files = task.files(metrics)
    facts = json.loads(files["confusion_matrix.json"])
    assert facts["matrix"] == Confusion.from_metrics(metrics).matrix
    assert facts["threshold"] == 0.5
    assert files["confusion_matrix.svg"].startswith(b"<svg")
    assert Sp500Task(seed=0, npz_path=npz).files(metrics) == {}
    said_in_words = load_task("sp500", seed=0, options={"npz_path": npz, "save_cm": "no"})
    assert isinstance(said_in_words, Sp500Task)
    assert said_in_words.files(metrics) == {}


def test_the_svg_shows_every_count() -> None:
    root = ElementTree.fromstring(as_svg(Confusion(10, 20, 30, 40)))
    texts = {text.text for text in root.iter() if text.text}
    assert {"10", "20", "30", "40", "down", "up", "predicted", "actual"} <= texts
    (line,) = (text for text in texts if "50.0%" in text)
    assert "70.0%" in line


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "localsgd"])
def test_it_is_trained_by_many_workers_and_replays_bit_by_bit(mode: str, npz: str) -> None:
    options: dict[str, Option] = {"npz_path": npz, "hidden": 4}
    plan = small_plan(mode, task="sp500", steps=4, task_options=options, pace_s=0.01)
    assert replay(plan, virtual(plan).history, virtual_hash(plan)).is_equal


def test_two_workers_with_half_the_batch_do_what_one_does(npz: str) -> None:
    # Without dropout, whose random state is per worker; 9 steps of 28 samples are an epoch.
    options: dict[str, Option] = {"npz_path": npz, "dropout": 0.0}
    common: dict[str, object] = {"task": "sp500", "task_options": options, "steps": 9, "dtype": Dtype.FLOAT32}
    state = virtual(small_plan("single", batch_sizes=(28,), **common)).final_state()
    two = virtual(small_plan("ssgd", batch_sizes=(14, 14), **common)).final_state()
    assert distance(state, two) < 1e-5


def test_a_missing_or_broken_file_is_one_clear_problem(tmp_path: Path, wording: Wording) -> None:
    wording(problem(str(tmp_path / "none.npz")))
    (tmp_path / "s.npz").write_text("date,close\n")
    wording(problem(str(tmp_path / "s.npz")).partition(": ")[0])
    (tmp_path / "empty.npz").write_bytes(b"")
    wording(problem(str(tmp_path / "empty.npz")).partition(": ")[0])
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    wording(problem(str(tmp_path / "zip.npz")))
    np.save(tmp_path / "one.npy", np.zeros(3))
    wording(problem(str(tmp_path / "one.npy")))


def test_a_file_cut_off_in_the_middle_is_one_clear_problem(
    npz: str, tmp_path: Path, wording: Wording
) -> None:
    whole = Path(npz).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    wording(problem(str(tmp_path / "cut.npz")).partition(": ")[0])


def test_objects_in_a_file_are_never_executed(tmp_path: Path, wording: Wording) -> None:
    np.savez(tmp_path / "o.npz", X_train=np.array([{}], dtype=object), y_train=[1], X_test=[1], y_test=[1])
    wording(problem(str(tmp_path / "o.npz")).partition(": ")[0])


def test_arrays_of_wrong_shapes_are_reported(tmp_path: Path, wording: Wording) -> None:
    x, y = columns(30)
    wording(problem(written(tmp_path, X_train=x, y_train=y, X_test=x, y_test=y[:3])))
    other = written(tmp_path, X_train=x, y_train=y, X_test=x[:, :2], y_test=y)
    wording(problem(other))
    wording(problem(written(tmp_path, X_train=x, y_train=y + 1, X_test=x, y_test=y)))
    holes = x.copy()
    holes[3] = np.nan
    wording(problem(written(tmp_path, X_train=holes, y_train=y, X_test=x, y_test=y)))
    words = written(tmp_path, X_train=np.array([[["a"]]]), y_train=y[:1], X_test=x, y_test=y)
    wording(problem(words))


def test_one_feature_a_day_needs_no_third_dimension(tmp_path: Path) -> None:
    x, y = columns(30)
    path = written(tmp_path, X_train=x[:, :, 0], y_train=y, X_test=x[:, :, 0], y_test=y)
    windows, _ = Sp500Task(seed=0, npz_path=path).samples().batch(np.arange(4))
    assert windows.shape == (4, 3, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 0},
        {"norm": "minmax"},
        {"threshold": 2.0},
        {"dropout": "much"},
        {"save_cm": 7},
        {"valid_from_train": 0.9, "hidden": 4},
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(
    options: dict[str, Option], tmp_path: Path, wording: Wording
) -> None:
    x, y = columns(20, window=8)
    path = written(tmp_path, X_train=x, y_train=y, X_test=x, y_test=y)
    wording(problem(path, **options))
