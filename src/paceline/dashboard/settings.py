"""What was decided about one dashboard before it starts?"""

from dataclasses import dataclass
from pathlib import Path

PORT = 8642
PAGE = Path(__file__).parent / "page"  # built by dashboard/build.py; not in the repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    place: Path  # a run's folder, or a folder of runs
    token: str
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    names: tuple[str, ...] = ()  # more names by which browsers may call us
    is_replay: bool = False
    is_readonly: bool = False
    allows_faults: bool | None = None  # None: only in runs of this machine
    rules: Path | None = None
    stops_with_stdin: bool = False
    page: Path = PAGE
