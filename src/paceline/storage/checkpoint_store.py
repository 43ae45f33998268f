"""Checkpoints in the store of a run: files are uploaded first, a manifest last.

The manifest is the commit point: a checkpoint without one does not exist. It names every file with
its size and SHA-256 and is sealed itself, so damage by the store or the network is detected, and the
checkpoint before is used. Every session of a run has its own checkpoints (run_store.py).
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from paceline.checkpoints.catalog import number_of
from paceline.core.disk import sync_folder
from paceline.core.sealed_json import seal, unseal
from paceline.storage.objects import Objects

MANIFEST = "manifest.json"


class CheckpointStore:
    """Checkpoints of one session, under this name."""

    def __init__(self, objects: Objects, session: str) -> None:
        self._objects = objects
        self._session = session

    def numbers(self) -> list[int]:
        """Numbers of all checkpoints that have a manifest, oldest first."""
        suffix = f"/{MANIFEST}"
        names = [name for name in self._objects.sizes(f"{self._session}/at-") if name.endswith(suffix)]
        folders = [Path(name.removesuffix(suffix)).name for name in names]
        return sorted(number_of(Path(folder)) for folder in folders if folder[3:].isdigit())

    def upload(self, folder: Path, before_commit: Callable[[], object] = lambda: None) -> int:
        """Upload a complete checkpoint; returns its bytes. `before_commit` is called before the manifest."""
        self._delete(folder.name)
        files = {}
        for path in sorted(folder.iterdir()):
            if path.suffix in (".json", ".safetensors"):
                files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                self._objects.write(self._name(folder.name, path.name), path)
        before_commit()
        manifest, _ = seal({"checkpoint": folder.name, "files": files})
        self._objects.write(self._name(folder.name, MANIFEST), manifest)
        return sum(int(str(entry["bytes"])) for entry in files.values())

    def download(self, number: int, root: Path) -> Path:
        """The checkpoint in `root`, checked; one of DAMAGED when it is not what was uploaded."""
        name = f"at-{number:08d}"
        manifest, _ = unseal(self._objects.read(self._name(name, MANIFEST)))
        draft = root / f"fetched-{name}"
        folder = root / name
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file, entry in manifest["files"].items():
            path = draft / Path(file).name  # never outside the folder, whatever the manifest contains
            self._objects.fetch(self._name(name, file), path)
            if path.stat().st_size != entry["bytes"] or _sha256(path) != entry["sha256"]:
                raise ValueError(f"{self._objects.url}/{self._name(name, file)} does not match its manifest")
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
        sync_folder(root)
        return folder

    def remove(self, number: int) -> None:
        self._delete(f"at-{number:08d}")

    def name(self, number: int) -> str:
        """The folder of a checkpoint in the store."""
        return self._name(f"at-{number:08d}")

    def _delete(self, checkpoint: str) -> None:
        """The manifest first: from then on there is no such checkpoint."""
        names = self._objects.sizes(f"{self._name(checkpoint)}/")
        for name in sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")):
            self._objects.delete(name)

    def _name(self, *parts: str) -> str:
        return "/".join((self._session, *parts))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
