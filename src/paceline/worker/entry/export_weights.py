"""`python -m paceline.worker.entry.export_weights FOLDER WHO FORMAT OUT`: plain weights for other tools.

The command `paceline checkpoint export` runs this in a process of its own,
because torch is imported here and never in the command. Of a snapshot only
what the module itself named is exported: no moments, no memories, no clocks.
"""

import json
import shutil
import sys
import warnings
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from paceline.checkpoints.catalog import PARTS
from paceline.checkpoints.snapshot import Snapshot, read_snapshot, tensor_names
from paceline.core.errors import CannotWriteError, PacelineError
from paceline.core.processes import die_with_parent
from paceline.worker.evaluation import best_weights


def main() -> None:
    die_with_parent()
    folder, participant, kind, out = sys.argv[1:]
    try:
        weights = weights_of(_read(Path(folder), participant))
        _write(weights, kind, Path(out))
    except PacelineError as error:
        print(json.dumps({"error": error.to_dicts()}), flush=True)
        return
    numbers = sum(tensor.numel() for tensor in weights.values())
    print(json.dumps({"tensors": len(weights), "numbers": numbers}), flush=True)


def _read(folder: Path, participant: str) -> Snapshot:
    saved = read_snapshot(folder, participant)
    if PARTS not in saved.facts:
        return saved
    from paceline.checkpoints.sharded import read_whole  # brings much of torch that others do not need

    return read_whole(folder)


def weights_of(saved: Snapshot) -> dict[str, Tensor]:
    """The module's state_dict: all tensors that belong neither to the optimizer nor to the strategy.

    Of a run that stops early, the best weights so far.
    """
    state_names = tensor_names(saved.facts["optimizer"]) | tensor_names(saved.facts.get("strategy"))
    if best := best_weights(saved):
        return best
    return {name: tensor for name, tensor in saved.tensors.items() if name not in state_names}


def _write(weights: dict[str, Tensor], kind: str, out: Path) -> None:
    """Write to another name, then rename: a file under the final name is complete."""
    draft = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if kind == "dcp":
            _write_dcp(weights, draft)
        else:
            save_file(weights, draft)
        draft.rename(out)
    except OSError as error:
        raise CannotWriteError(
            f"cannot write {out}: {error.strerror or error}", "name a folder with room and permission"
        ) from error
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)


def _write_dcp(weights: dict[str, Tensor], folder: Path) -> None:
    """torch pickles the metadata of this format; we write it for others, and never read it."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():  # it warns about a single process, which is intended
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(dict(weights), checkpoint_id=folder, no_dist=True)


if __name__ == "__main__":
    main()
