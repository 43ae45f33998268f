"""Compressed means: near the exact mean and equal on every worker, whatever the sizes."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.runs.virtual_workers import run_workers
from torch import Tensor

from paceline.compression.exchange import carry_out
from paceline.compression.low_rank import LowRankMean, parts_of
from paceline.compression.mean import compressed_mean, split_by_rank
from paceline.compression.sparse import Dgc, density
from paceline.plan.plan import Codec, Compression, Plan
from paceline.transport.arena import Piece
from paceline.transport.ports import Collective, Traffic
from paceline.transport.virtual_time import Turns

FP16, INT8, SIGN = (Compression(codec=c) for c in (Codec.FP16, Codec.INT8, Codec.SIGN))
TOPK = Compression(codec=Codec.TOPK, amount=0.1)
POWERSGD = Compression(codec=Codec.POWERSGD, amount=1.0)
ALL = [FP16, INT8, SIGN, TOPK, POWERSGD]
PIECES = (Piece("matrix", 0, torch.Size((8, 6))), Piece("vector", 48, torch.Size((16,))))


def plan_for(workers: int) -> Plan:
    batches = (1,) * workers
    return Plan(run="t", task="", mode="ssgd", num_workers=workers, steps=1, batch_sizes=batches)


def averaged(
    compress: Compression, given_: Sequence[Tensor], *, lossy_end: int, rounds: int = 1
) -> tuple[list[Tensor], list[Traffic]]:
    """(each worker's vector after the last round, its traffic); every round averages the same vectors."""
    after: dict[int, Tensor] = {}
    moved: dict[int, Traffic] = {}

    def live(collective: Collective, turns: Turns) -> None:
        vector = collective.allocate(given_[0].numel(), given_[0].dtype)
        mean = compressed_mean(
            plan_for(len(given_)),
            compress,
            collective,
            vector,
            lossy_end=lossy_end,
            pieces=PIECES,
            clock=turns,
        )
        total = torch.zeros_like(vector)
        for _ in range(rounds):
            vector.copy_(given_[collective.rank])
            moved[collective.rank] = mean.reduce()
            total += vector
        after[collective.rank] = total / rounds

    run_workers(len(given_), live)
    return [after[rank] for rank in sorted(after)], [moved[rank] for rank in sorted(moved)]


def random_vectors(workers: int, numel: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(workers * 1000 + numel)
    return [torch.randn(numel, generator=generator, dtype=torch.float64) for _ in range(workers)]


@pytest.mark.parametrize("compress", ALL, ids=lambda c: c.codec.value)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_all_workers_hold_the_same_bits_and_what_must_be_exact_is(
    compress: Compression, workers: int
) -> None:
    vectors = random_vectors(workers, 64 + 16)
    after, _ = averaged(compress, vectors, lossy_end=64)
    assert len({vector.numpy().tobytes() for vector in after}) == 1
    exact = sum(vectors[1:], start=vectors[0].clone()) / workers
    assert torch.equal(after[0][64:], exact[64:])


@pytest.mark.parametrize("compress", ALL, ids=lambda c: c.codec.value)
def test_with_a_memory_the_mean_of_many_rounds_is_the_exact_mean(compress: Compression) -> None:
    vectors = random_vectors(3, 64)
    errors = []
    for rounds in (1, 20, 300):
        after, _ = averaged(compress, vectors, lossy_end=64, rounds=rounds)
        errors.append(float((after[0] - torch.stack(vectors).mean(0)).abs().max()))
    assert errors[2] < 0.1
    assert errors[2] <= errors[0]


@settings(max_examples=60, deadline=None)
@given(numel=st.integers(0, 5000), world=st.integers(1, 40))
def test_pieces_cover_the_vector_once_and_the_first_is_the_longest(numel: int, world: int) -> None:
    pieces = split_by_rank(numel, world)
    lengths = [p.stop - p.start for p in pieces]
    assert len(pieces) == world
    assert sum(lengths) == numel
    assert max(lengths) == lengths[0]
    assert all(one.stop == other.start for one, other in pairwise(pieces))


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_int8_keeps_its_factor_whatever_the_number_of_workers(workers: int) -> None:
    _, traffic = averaged(INT8, random_vectors(workers, 8192), lossy_end=8192)
    plain = 2 * (workers - 1) / workers * 8192 * 8
    assert traffic[0].bytes_out == 2 * (workers - 1) * (8192 // workers + 4 * (8192 // workers // 256))
    assert traffic[0].bytes_saved == plain - traffic[0].bytes_out
    assert plain / traffic[0].bytes_out == pytest.approx(8 / (1 + 4 / 256), rel=1e-9)


def test_top_k_with_too_many_workers_saves_nothing_and_is_reported() -> None:
    _, traffic = averaged(TOPK, random_vectors(14, 320), lossy_end=320)
    assert traffic[0].bytes_saved < 0


def test_the_density_of_dgc_falls_in_four_stages_and_never_below_the_target() -> None:
    seen = [density(step, part=0.01, warmup=8) for step in range(10)]
    assert seen == [0.25] * 2 + [0.0625] * 2 + [0.015625] * 2 + [0.01] * 4
    assert density(0, part=0.5, warmup=8) == 0.5
    assert density(0, part=0.01, warmup=0) == 0.01


def test_dgc_forgets_momentum_where_it_sent_and_gathers_it_where_it_did_not() -> None:
    dgc = Dgc(torch.zeros(2, dtype=torch.float64), part=0.5, warmup=0, clip=None)
    gradient = torch.tensor([3.0, 1.0], dtype=torch.float64)
    dgc.choose(gradient)
    saved = dgc.snapshot()
    assert saved["velocity"].tolist() == [0.0, 1.0]
    assert saved["owed"].tolist() == [0.0, 1.0]
    dgc.choose(torch.tensor([0.1, 1.0], dtype=torch.float64))  # 1.9 of momentum, 2.9 owed: now it is sent
    assert dgc.snapshot()["owed"].tolist() == pytest.approx([0.1, 0.0])


def test_dgc_clips_before_it_accumulates() -> None:
    dgc = Dgc(torch.zeros(2, dtype=torch.float64), part=0.5, warmup=0, clip=0.5)
    coder, payload = dgc.choose(torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert coder.decode(payload, 2, torch.float64).tolist() == pytest.approx([0.0, 0.4])


def test_only_matrices_that_become_smaller_are_made_thin() -> None:
    pieces = [
        Piece("bias", 0, torch.Size((10,))),
        Piece("matrix", 16, torch.Size((8, 6))),
        Piece("tiny", 64, torch.Size((2, 2))),
        Piece("filters", 80, torch.Size((4, 3, 5, 5))),
        Piece("scalar", 384, torch.Size(())),
    ]
    parts = parts_of(400, pieces, 2)
    assert [(m.start, m.rows, m.columns) for m in parts.matrices] == [(16, 8, 6), (80, 4, 75)]
    assert parts.plain == (slice(0, 16), slice(64, 80), slice(380, 400))
    assert (parts.left_numel, parts.right_numel) == (2 * 12 + 52, 2 * 81)


def low_rank(given_: Sequence[Tensor], *, rank: int, rounds: int) -> Tensor:
    after: dict[int, Tensor] = {}

    def live(collective: Collective, turns: Turns) -> None:
        part = given_[collective.rank].clone()
        parts = parts_of(part.numel(), PIECES[:1], rank)
        mean = LowRankMean(parts, collective, part, error_feedback=False, seed=3, clock=turns)
        for _ in range(rounds):
            part.copy_(given_[collective.rank])
            carry_out(mean.reduction(part), collective)
        after[collective.rank] = part

    run_workers(len(given_), live)
    return after[0]


def test_a_warm_start_finds_the_best_approximation_after_a_few_rounds() -> None:
    vectors = random_vectors(2, 48)
    exact = torch.stack(vectors).mean(0).view(8, 6)
    left, values, right = torch.linalg.svd(exact)
    best = float((exact - values[0] * left[:, :1] @ right[:1]).norm())
    errors = [float((low_rank(vectors, rank=1, rounds=n).view(8, 6) - exact).norm()) for n in (1, 30)]
    assert best <= errors[1] < errors[0]
    assert errors[1] == pytest.approx(best, rel=1e-3)


def test_a_gradient_of_zeros_does_not_end_powersgd() -> None:
    zero = torch.zeros(48, dtype=torch.float64)
    assert low_rank([zero, zero], rank=2, rounds=3).tolist() == [0.0] * 48


def test_powersgd_passes_nan_on() -> None:
    vectors = random_vectors(2, 48)
    vectors[1][5] = float("nan")
    assert bool(low_rank(vectors, rank=2, rounds=1).isnan().any())


def test_what_lies_between_tensors_stays_zero() -> None:
    seen: dict[int, Tensor] = {}

    def live(collective: Collective, turns: Turns) -> None:
        vector = collective.allocate(64, torch.float64)
        pieces = (Piece("one", 0, torch.Size((10,))), Piece("other", 16, torch.Size((20,))))
        mean = compressed_mean(
            plan_for(2), SIGN, collective, vector, lossy_end=48, pieces=pieces, clock=turns
        )
        vector[:10], vector[16:36] = 1.0, -2.0
        mean.reduce()
        seen[collective.rank] = vector

    run_workers(2, live)
    for vector in seen.values():
        assert bool(vector[:10].all())
        assert not bool(vector[10:16].any())
        assert not bool(vector[36:].any())
