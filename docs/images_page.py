"""Reference page of image checks: the rules' own table, and the matrix."""

from docs.tables import code, table
from paceline.images.lint.bases import catalog
from paceline.images.lint.build_log import SIGNATURES
from paceline.images.lint.matrix import TorchRow, matrix
from paceline.images.lint.project import Level
from paceline.images.lint.rules import PATTERNS
from paceline.images.lint.rules.pattern import Pattern

_LEVELS = {
    Level.PROBLEM: "the build, the import or the run fails; exit code 8 unless it is fixed",
    Level.WARNING: "it works, at a cost in size, safety or reproducibility",
    Level.NOTE: "not decidable here, or a choice for the user",
}


def images_page() -> list[str]:
    return [
        "# Checks of `paceline image check`",
        "",
        "How to use it: [images](../guides/images.md). A finding may have a lower level than its row.",
        "",
        *table(("level", "meaning"), ((code(level.value), text) for level, text in _LEVELS.items())),
        "",
        "## Conflicts",
        "",
        *table(("#", "id", "level", "problem", "fix", "also detected in build logs"), map(_row, PATTERNS)),
        "",
        "## torch, Python and CUDA",
        "",
        f"From the metadata of wheels, {matrix().dated}; `paceline image matrix --refresh` updates it. CUDA,",
        "cuDNN and NCCL are those of the wheel on PyPI for Linux on x86; – means: none, or none yet.",
        "",
        *table(
            ("torch", "Python", "CUDA", "cuDNN", "NCCL", "torchvision", "torchaudio"),
            map(_torch_row, matrix().torch),
        ),
        "",
        "## Base images that a fix may choose",
        "",
        f"Curated by hand, {catalog().dated}.",
        "",
        *table(
            ("image", "tags"),
            (
                (code("nvidia/cuda"), ", ".join(map(code, catalog().cuda_tags))),
                (code("pytorch/pytorch"), ", ".join(code(f"{tag}-…") for tag in catalog().torch_tags)),
                (code("python"), "your own tag with another version, or `slim` for `alpine`"),
            ),
        ),
    ]


def _row(pattern: Pattern) -> tuple[str, ...]:
    in_log = any(one.pattern is pattern for one in SIGNATURES)
    words = (code(pattern.id), pattern.level.value, pattern.what, pattern.fix)
    return (str(pattern.number), *words, "yes" if in_log else "")


def _torch_row(row: TorchRow) -> tuple[str, ...]:
    parts = (row.cuda, row.cudnn, row.nccl, row.torchvision, row.torchaudio)
    pythons = f"{row.pythons[0]} to {row.pythons[-1]}"
    return (str(row.torch), pythons, *("–" if part is None else str(part) for part in parts))
