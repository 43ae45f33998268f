"""Where else does a run's record go, besides its folder?"""

from dataclasses import dataclass
from enum import StrEnum


class ExportKind(StrEnum):
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTarget:
    """`where` is a folder (tensorboard), an address (mlflow), offline or online (wandb); None: the usual."""

    kind: ExportKind
    where: str | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """What must be importable."""
        if self.kind is ExportKind.MLFLOW and self.where is not None and _is_database(self.where):
            return ("mlflow", "sqlalchemy")
        return (self.kind.value,)

    @property
    def install(self) -> str:
        """What installs them."""
        if "sqlalchemy" in self.packages:
            return "pip install mlflow"  # the small client knows files and servers alone
        return f"pip install 'paceline[{self.kind.value}]'"

    @property
    def text(self) -> str:
        return self.kind.value if self.where is None else f"{self.kind.value}={self.where}"


def _is_database(where: str) -> bool:
    scheme = where.partition(":")[0].partition("+")[0]
    return "://" in where and scheme in ("sqlite", "postgresql", "mysql", "mssql")
