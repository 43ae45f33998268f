"""Under which name does a vendor know this run? Kept in its folder, so that a resumed run goes on there."""

import json
from pathlib import Path


class Memo:
    def __init__(self, run_dir: Path, vendor: str) -> None:
        self._path = run_dir / "export" / f"{vendor}.json"

    def read(self) -> str | None:
        try:
            return str(json.loads(self._path.read_bytes())["run"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None  # without it, or where it is damaged, the vendor gives a new name

    def write(self, run: str) -> None:
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps({"run": run}) + "\n")
