"""`paceline.run`: a training function, or a script, as every worker of a run.

    def train(run):
        model, optimizer, loader = run.prepare(…)
        for epoch in run.epochs(3): …

    result = paceline.run(train, mode="asgd", workers=4)

See docs/guides/your-own-script.md.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.api.arguments import hints_in_traceback, import_name, parse_kwargs, session_for
from paceline.api.function_source import script_of
from paceline.api.result import TrainResult
from paceline.api.train import to_result, train_with
from paceline.core.disk import write_durably
from paceline.core.errors import ConfigError, Problem
from paceline.launchers.local import LocalLauncher
from paceline.training.progress_display import open_watcher
from paceline.training.request import claimed_run_dir
from paceline.training.script import read_script_request

Arguments = Sequence[object] | Mapping[str, object]


def run(
    train: Callable[..., object] | str | Path,
    *,
    mode: str | type | None = None,
    workers: int | None = None,
    arguments: Arguments = (),
    progress: bool = True,
    config: str | Path | None = None,
    **settings: object,
) -> TrainResult:
    """Run your own training loop with many workers, to its end.

    Arguments:

    - `train`: a function whose first argument is the run that `paceline.join` returns, or a script's file. A
      function travels as source text: what it uses must be modules, plain constants, functions or classes.
    - `mode`: the synchronization strategy; None: `single`, or `ssgd` with several workers.
    - `workers`: the number of workers; None: the setting `num_workers`, or 1 for mode `single`, else 2.
    - `arguments`: further keyword arguments of the function, or the arguments of the script.
    - `progress`: show the progress on stderr.
    - `config`: a YAML or TOML file with more settings.
    - `settings`: those of docs/reference/config.md that `paceline run` has, by the same names. Environment
      variables are ignored.

    Returns the result of the finished run; its `metrics` are the last numbers of `run.log`.

    Raises ConfigError with every problem, TrainingError when the run could not finish, and
    TrainStoppedError (a KeyboardInterrupt) after Ctrl-C, with a checkpoint to resume from.
    """
    with hints_in_traceback(), LocalLauncher(import_from=sys.path) as launcher:
        named = {} if mode is None else {"mode": import_name(mode, "mode")}
        flags = [*parse_kwargs("run", {**named, "num_workers": workers}), *parse_kwargs("run", settings)]
        session = session_for(progress, config)
        script, words = script_file(train, arguments, Path(str(settings.get("save_dir") or "runs")))
        request = read_script_request(session, flags, script, words, launcher)
        with (
            claimed_run_dir(request.first_dir.resolve(), is_named=request.is_named) as run_dir,
            open_watcher(session, request.plan.run) as watcher,
        ):
            result = train_with(launcher, request.plan, run_dir, watcher, metrics=request.metrics)
        return to_result(result, run_dir)


def script_file(
    train: Callable[..., object] | str | Path, arguments: Arguments, runs: Path
) -> tuple[Path, tuple[str, ...]]:
    """The script and its arguments; that of a function is written below `runs`, named by its content."""
    if isinstance(train, str | Path):
        if isinstance(arguments, Mapping):
            message = "a script was given named arguments, which only a function has"
            raise ConfigError([Problem(message, 'write  arguments=["--epochs", "3"]', "run(arguments=…)")])
        return Path(train).resolve(), tuple(map(str, arguments))
    if not isinstance(arguments, Mapping) and arguments:
        message = "a function was given arguments without names"
        raise ConfigError([Problem(message, 'write  arguments={"epochs": 3}', "run(arguments=…)")])
    text = script_of(train, arguments if isinstance(arguments, Mapping) else {}).encode()
    # It stays: a run is resumed with its script.
    file = (runs / "scripts" / hashlib.sha256(text).hexdigest()[:16] / f"{train.__name__}.py").resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, [text])
    return file, ()
