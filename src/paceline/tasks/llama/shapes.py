"""Published Llama sizes, by the names that `--model` takes."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3.1 and later reach further than they were first trained for."""

    factor: float
    low: float = 1.0
    high: float = 4.0
    original_places: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    vocabulary: int
    width: int
    layers: int
    heads: int
    shared_heads: int  # of keys and values
    inner: int  # of the gated network
    head_size: int
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied: bool = False  # the scores' matrix is the embedding
    places: int = 8192  # how long a text it was made for
    window: int = 0  # attention window in tokens, including the token itself; 0: unlimited
    experts: int = 0  # gated networks of a layer to choose from; 0: there is one, and no choice
    experts_used: int = 2

    @property
    def parameters(self) -> int:
        """How many numbers it has; tied ones once."""
        return self._with(max(1, self.experts))

    def _with(self, networks: int) -> int:
        heads = (2 * self.heads + 2 * self.shared_heads) * self.head_size * self.width
        choice = self.experts * self.width
        layer = heads + choice + networks * 3 * self.width * self.inner + 2 * self.width
        tables = (1 if self.tied else 2) * self.vocabulary * self.width
        return tables + self.layers * layer + self.width

    def flops_per_token(self, length: int) -> float:
        """Of forward and backward, as MFU counts them: 6 for each parameter, and causal attention.

        What activation checkpointing computes again does not count, nor experts that a token does not go
        through. The embedding counts where it is tied: then it is the scores' matrix.
        """
        used = self._with(self.experts_used if self.experts else 1)
        counted = used if self.tied else used - self.vocabulary * self.width
        return 6.0 * counted + 12.0 * self.layers * self.heads * self.head_size * self._reach(length)

    def _reach(self, length: int) -> float:
        """Mean number of attended tokens: half of all, or fewer with a window."""
        if 0 < self.window < length:
            return self.window - self.window**2 / (2 * length)
        return length / 2


_LLAMA_3 = LlamaShape(
    vocabulary=128_256,
    width=4096,
    layers=32,
    heads=32,
    shared_heads=8,
    inner=14_336,
    head_size=128,
    rope_base=500_000.0,
    rope_scaling=RopeScaling(factor=8.0),
    places=131_072,
)
_LLAMA_32 = replace(_LLAMA_3, rope_scaling=RopeScaling(factor=32.0), tied=True)

_LLAMA_2 = LlamaShape(
    vocabulary=32_000,
    width=4096,
    layers=32,
    heads=32,
    shared_heads=32,
    inner=11_008,
    head_size=128,
    places=4096,
)
_MISTRAL = replace(_LLAMA_3, vocabulary=32_000, rope_base=1_000_000.0, rope_scaling=None, places=32_768)
_TINY = LlamaShape(
    vocabulary=256,
    width=64,
    layers=2,
    heads=4,
    shared_heads=2,
    inner=176,
    head_size=16,
    tied=True,
    places=1024,
)

SHAPES: dict[str, LlamaShape] = {
    # For tests and laptops: bytes as words.
    "llama_tiny": _TINY,
    "mixtral_tiny": replace(_TINY, experts=4, inner=96, tied=False),
    "llama_v2_7b": _LLAMA_2,
    "llama_v2_13b": replace(_LLAMA_2, width=5120, layers=40, heads=40, shared_heads=40, inner=13_824),
    "llama_v3_1b": replace(_LLAMA_32, width=2048, layers=16, inner=8192, head_size=64),
    "llama_v3_3b": replace(_LLAMA_32, width=3072, layers=28, heads=24, inner=8192),
    "llama_v3_8b": _LLAMA_3,
    "llama_v3_70b": replace(_LLAMA_3, width=8192, layers=80, heads=64, inner=28_672),
    # Version 0.3, which has no sliding window: so it is a Llama with other numbers.
    "mistral_7b": replace(_MISTRAL, vocabulary=32_768),
    "mistral_v01_7b": replace(_MISTRAL, rope_base=10_000.0, window=4096),
    "mixtral_8x7b": replace(_MISTRAL, experts=8),
}
