"""Facts about a script that a plan needs, as options of its task.

They are measured by a process that runs the script until its second batch (`paceline run`). A worker of the
run compares its own with those of the plan, so two workers that built different things are noticed before
step 0.
"""

import atexit
import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import script_error
from paceline.plan.plan import Option
from paceline.plan.schedule import steps_of_epochs

STEP_SCHEDULE = "step"
EPOCH_SCHEDULE = "epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFile:
    """The file, and how it was started."""

    path: str
    arguments: tuple[str, ...] = ()
    folder: str = "."

    @property
    def name(self) -> str:
        return Path(self.path).name


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """Every field is a plain value: it becomes an option of the plan's task."""

    num_samples: int = 0  # of an epoch, after drop_last; 0: the script prepares no loader
    batch_size: int = 1  # samples of a micro-batch of the whole run
    accumulate: int = 1
    per_worker: bool = False  # `batch_size` is that of one worker
    epochs: int = 0  # declared by run.epochs; 0: not
    steps: int = 0  # declared by run.steps; 0: not
    schedule: str = ""  # what the learning rate is a function of; empty: there is no scheduler
    clip_norm: float = 0.0  # of all parameters; 0: not clipped
    clip_value: float = 0.0
    clips_some: bool = False  # a limit of some parameters only, which a server cannot apply
    turns: int = 1  # optimizers that step in turn
    has_plateau: bool = False  # a schedule by a number of the script's
    has_scaler: bool = False
    has_stream: bool = False  # an iterable dataset, which has no epochs
    keeps_state: bool = False  # run.state or run.keep
    has_after_update: bool = False
    meets: bool = False  # run.mean, run.gather or run.split was called in the first step
    model: str = ""  # fingerprint of the model as it was prepared
    optimizer: str = ""

    def global_batch(self, num_workers: int) -> int:
        """Samples of a step of the whole run."""
        each = self.batch_size * self.accumulate
        return each * num_workers if self.per_worker else each

    def batch_sizes(self, num_workers: int) -> tuple[int, ...]:
        total = self.global_batch(num_workers)
        sizes = split(total, num_workers)
        if min(sizes) < self.accumulate:
            raise script_error(
                "E129",
                f"a step has {total} samples for {num_workers} workers with {self.accumulate} "
                f"micro-batch{'es' if self.accumulate > 1 else ''} each",
                f'use a batch_size of at least {num_workers}, or run.prepare(…, batch="per-worker")'
                if self.num_samples
                else "draw run.share(64) samples in each step, where the script alone draws 64",
            )
        return sizes

    def total_steps(self, num_workers: int) -> int:
        if self.steps:
            return self.steps
        if self.epochs and self.has_stream:
            raise script_error(
                "E125",
                "run.epochs was called, and a stream has no length",
                "count steps:  for step in run.steps(5000):  and take one batch in each:  batch = "
                "next(batches)",
            )
        if not self.epochs:
            raise script_error(
                "E130",
                "the length of the training is not known: the loop counts without run",
                "write  for epoch in run.epochs(30):  or  for step in run.steps(5000):",
            )
        if not self.num_samples:
            raise script_error(
                "E120",
                "run.epochs was called, but no DataLoader was prepared",
                "call  run.prepare(model, optimizer, loader), or count steps:  for step in run.steps(5000):",
            )
        return steps_of_epochs(self.epochs, self.num_samples, self.global_batch(num_workers))

    def options(self, file: ScriptFile) -> dict[str, Option]:
        """As options of the plan's task."""
        return {
            **dataclasses.asdict(self),
            "file": file.path,
            "arguments": json.dumps(file.arguments),
            "folder": file.folder,
            "sha256": sha256_of(file),
        }

    @classmethod
    def read(cls, options: dict[str, Option]) -> "ScriptFacts":
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in options.items() if name in names})  # type: ignore[arg-type]  # written by `options`


def file_of(options: Mapping[str, Option]) -> ScriptFile:
    """The script of a plan; an error if the file is not here, or was changed since the run began.

    A plan with `sources` (launcher ray) needs no file: they are written to a folder of this process.
    """
    arguments = tuple(str(argument) for argument in json.loads(str(options["arguments"])))
    file = ScriptFile(path=str(options["file"]), arguments=arguments, folder=str(options["folder"]))
    if "sources" in options and not _is_here(file, str(options["sha256"])):
        return _written(file, json.loads(str(options["sources"])))
    if sha256_of(file) != options["sha256"]:
        raise script_error(
            "E132",
            f"{file.path} is not the file that the run was planned with",
            "restore it, or start a new run; on several hosts it must be the same at the same path",
        )
    if not Path(file.folder).is_dir():
        message = f"there is no folder {file.folder}, in which the run was started"
        raise script_error("E120", message, "on several hosts the script and its folder are at the same path")
    return file


def _is_here(file: ScriptFile, sha256: str) -> bool:
    return Path(file.path).is_file() and sha256_of(file) == sha256 and Path(file.folder).is_dir()


def _written(file: ScriptFile, texts: Mapping[str, str]) -> ScriptFile:
    """The same script in a temporary folder, beside its modules; it is also the working folder."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-script-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    here = file.folder if Path(file.folder).is_dir() else str(folder)
    return ScriptFile(path=str(folder / file.name), arguments=file.arguments, folder=here)


def sha256_of(file: ScriptFile) -> str:
    try:
        return hashlib.sha256(Path(file.path).read_bytes()).hexdigest()
    except OSError as error:
        message = f"{file.path} cannot be read: {error.strerror}"
        raise script_error("E120", message, "name the file of a training script") from error


def split(count: int, parts: int) -> tuple[int, ...]:
    """`count` in as equal parts as possible, the larger ones first."""
    each, more = divmod(count, parts)
    return tuple(each + (part < more) for part in range(parts))
