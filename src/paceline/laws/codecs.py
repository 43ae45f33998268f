"""C: codecs and error memories, by themselves."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paceline.compression.codecs import Cast, Coder, Int8, Sign, StochasticInt8, TopK, from_bytes
from paceline.compression.error_feedback import ErrorMemory, Memory, NoMemory
from paceline.core.errors import PacelineError
from paceline.laws.lab import Finding, Lab, Law, within

CODERS: Mapping[str, Coder] = {
    "fp32": Cast(torch.float32),
    "fp16": Cast(torch.float16),
    "bf16": Cast(torch.bfloat16),
    "int8": Int8(),
    "stochastic int8": StochasticInt8(seed=3),
    "sign": Sign(),
    "topk": TopK(0.1),
}
FORMULAS: Mapping[str, Callable[[int, int], int]] = {  # of the length, and of the bytes of one number
    "fp32": lambda d, _: 4 * d,
    "fp16": lambda d, _: 2 * d,
    "bf16": lambda d, _: 2 * d,
    "int8": lambda d, _: d + 4 * math.ceil(d / 256),
    "stochastic int8": lambda d, _: d + 4 * math.ceil(d / 256),
    "sign": lambda d, _: math.ceil(d / 8) + 2 * math.ceil(d / 320),
    "topk": lambda d, size: math.ceil(d / 10) * (4 + size),
}
LENGTHS = (0, 1, 7, 8, 255, 256, 257, 320, 321, 1000, 1025)
DTYPES = (torch.float32, torch.float64)


def c1_nothing_is_lost(_: Lab) -> Finding:
    worst = {name: _lost(coder) for name, coder in CODERS.items()}
    shown = ", ".join(f"{name} {value:.0e}" for name, value in worst.items())
    return Finding(max(worst.values()) <= 1e-11, f"|Σ sent + residual - Σ input| after 200 messages: {shown}")


def _lost(coder: Coder) -> float:
    rng = torch.Generator().manual_seed(1)
    memory = ErrorMemory(torch.zeros(300, dtype=torch.float64))
    given = sent = torch.zeros(300, dtype=torch.float64)
    for number in range(200):
        gradient = torch.randn(300, generator=rng, dtype=torch.float64)
        payload = coder.encode(memory.corrected(gradient), number)
        message = coder.decode(payload, 300, torch.float64)
        memory.sent(message)
        given = given + gradient
        sent = sent + message
    return float((sent + memory.snapshot()["owed"] - given).abs().max())


def c2_codecs_contract(_: Lab) -> Finding:
    """‖p - C(p)‖² ≤ (1 - δ)‖p‖²: δ = k/d for top-k, ‖p‖₁²/(d‖p‖²) for a block of signs.

    A magnitude that is rounded by a part ε, here 2⁻⁹ at most, changes the signs' δ by a part ε².
    """
    rng = torch.Generator().manual_seed(2)
    topk = 0.0
    signs = 0.0
    bytes_off = 0.0
    for _number in range(100):
        p = torch.randn(256, generator=rng, dtype=torch.float64) ** 3
        whole = float(p.square().sum())
        topk = max(topk, _left(TopK(0.1), p) / whole / (1 - 26 / 256))
        expected = 1 - float(p.abs().sum()) ** 2 / (256 * whole)
        signs = max(signs, abs(_left(Sign(), p) / whole - expected))
        off = (p - _through(Int8(), p)).abs().max()
        bytes_off = max(bytes_off, float(off / (p.abs().max() / 254)))
    return Finding(
        topk <= 1 and signs < 2.0**-18 and bytes_off <= 1 + 1e-6,
        f"top-k leaves {topk:.3f} of its bound; signs differ from theirs by {signs:.0e}; "
        f"int8 is off by {bytes_off:.3f} of half a scale",
    )


def _through(coder: Coder, vector: Tensor, nonce: int = 0) -> Tensor:
    return coder.decode(coder.encode(vector, nonce), vector.numel(), vector.dtype)


def _left(coder: Coder, vector: Tensor) -> float:
    return float((vector - _through(coder, vector)).square().sum())


def c4_random_rounding_is_right_on_average(_: Lab) -> Finding:
    draws = 10_000
    vector = torch.linspace(-1, 1, 256, dtype=torch.float64) ** 3  # one block
    coder = StochasticInt8(seed=5)
    seen = _through(coder, vector.repeat(draws)).view(draws, -1)
    scale = float(from_bytes(coder.encode(vector)[:4], torch.float32))
    up = vector / scale - (vector / scale).floor()  # the probability of rounding up
    spread = scale * (up * (1 - up) / draws).sqrt() + 1e-12
    errors = float(((seen.mean(0) - vector).abs() / spread).max())
    nearest = float(((_through(Int8(), vector) - vector).abs() / spread).max())
    return Finding(
        errors <= 4 and nearest > 4,
        f"{draws:,} draws: off by at most {errors:.2f} standard errors; nearest rounding by {nearest:.0f}",
    )


def c5_what_comes_back_is_what_was_sent(_: Lab) -> Finding:
    wrong = list[tuple[str, int | str]]()
    for name, coder in CODERS.items():
        for dtype in DTYPES:
            for length in LENGTHS:
                strided = torch.randn(2 * length, dtype=dtype)[::2]
                back = _through(coder, strided)
                same = torch.equal(back, _through(coder, strided.contiguous()))
                if (back.shape, back.dtype, back.device, same) != (
                    strided.shape,
                    dtype,
                    strided.device,
                    True,
                ):
                    wrong.append((name, length))
            wrong += [(name, odd) for odd in ("nan", "inf", "-inf") if not _is_seen(coder, float(odd), dtype)]
    return Finding(not wrong, f"{len(CODERS)} codecs, lengths {LENGTHS}; wrong: {wrong[:3]}")


def _is_seen(coder: Coder, odd: float, dtype: torch.dtype) -> bool:
    """Does a number that is none stay visible, as itself or as an error?"""
    vector = torch.randn(300, dtype=dtype)
    vector[77] = odd
    try:
        return not bool(torch.isfinite(_through(coder, vector)).all())
    except PacelineError:
        return True


def c6_payloads_have_the_size_of_their_formula(_: Lab) -> Finding:
    wrong = []
    for name, coder in CODERS.items():
        for dtype in DTYPES:
            for length in LENGTHS:
                expected = FORMULAS[name](length, dtype.itemsize)
                size = coder.encode(torch.randn(length, dtype=dtype)).nbytes
                if {size, coder.payload_bytes(length, dtype)} != {expected}:
                    wrong.append((name, length, size, expected))
    return Finding(not wrong, f"{len(CODERS)} codecs, lengths {LENGTHS}; wrong: {wrong[:3]}")


def c8_signs_need_memory(_: Lab) -> Finding:
    """Karimireddy 2019, section 3: f(x) = ε|x₁+x₂| + |x₁-x₂| from (1, 1), ε = ½."""
    alone = _descend(NoMemory())
    fed_back = _descend(ErrorMemory(torch.zeros(2, dtype=torch.float64)))
    return Finding(
        alone >= 1.0 and fed_back < 0.05,
        f"f starts at 1; after 4000 steps it is {alone:.3f} with signs alone, {fed_back:.3f} with error "
        "feedback",
    )


def _descend(memory: Memory) -> float:
    x = torch.ones(2, dtype=torch.float64)
    across = torch.tensor([1.0, 1.0]).double()
    along = torch.tensor([1.0, -1.0]).double()
    for step in range(4000):
        gradient = 0.5 * _slope(x @ across) * across + _slope(x @ along) * along
        message = _through(Sign(), memory.corrected(gradient))
        memory.sent(message)
        x -= 0.1 / (1 + step) ** 0.5 * message
    return float(0.5 * (x @ across).abs() + (x @ along).abs())


def _slope(value: Tensor) -> float:
    return 1.0 if float(value) >= 0 else -1.0


def c1_a_memory_in_gradient_units_outlives_a_change_of_rate(_: Lab) -> Finding:
    """Half is owed when the rate falls tenfold; it is then applied at the new rate, not at the old one."""
    memory = ErrorMemory(torch.zeros(2, dtype=torch.float64))
    coder = TopK(0.5)
    moved = torch.zeros(2, dtype=torch.float64)
    for rate, gradient in ((1.0, [2.0, 1.0]), (0.1, [0.0, 0.0])):
        message = _through(coder, memory.corrected(torch.tensor(gradient, dtype=torch.float64)))
        memory.sent(message)
        moved += rate * message
    return within(float((moved - torch.tensor([2.0, 0.1], dtype=torch.float64)).abs().max()), 1e-15)


SYNC = ("ssgd",)
LAWS = (
    Law("C1", "with error feedback nothing is lost: Σ sent + residual = Σ input", SYNC, c1_nothing_is_lost),
    Law(
        "C1.rate",
        "the residual is in gradient units: it is applied at the learning rate of its message",
        SYNC,
        c1_a_memory_in_gradient_units_outlives_a_change_of_rate,
    ),
    Law("C2", "codecs contract by their published factor", SYNC, c2_codecs_contract),
    Law(
        "C4",
        "stochastic rounding is unbiased, within 4 standard errors of 10,000 draws",
        SYNC,
        c4_random_rounding_is_right_on_average,
    ),
    Law(
        "C5",
        "length, dtype and device are restored from any layout; NaN and infinity are preserved",
        SYNC,
        c5_what_comes_back_is_what_was_sent,
    ),
    Law(
        "C6",
        "a payload has exactly the bytes of its formula, indices and scales included",
        SYNC,
        c6_payloads_have_the_size_of_their_formula,
    ),
    Law(
        "C8",
        "signs alone fail on the published counter-example, with error feedback they converge",
        SYNC,
        c8_signs_need_memory,
    ),
)
