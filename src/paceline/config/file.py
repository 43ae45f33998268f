"""Config files: YAML or TOML by the file's ending, flat or in sections."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from paceline.config.keys import KEYS
from paceline.config.sp500_options import BY_SECTION, read_sp500_option
from paceline.config.values import FileContent, Quoted, Raw, RawSetting, Unreadable, show_value
from paceline.core.errors import Mistake, Problem
from paceline.core.humanize import did_you_mean

# `train` holds any setting; `io` sets the run's folder; `data`, `model` and
# `eval` hold options of the task sp500, which `model.kind` and `data.npz_path`
# name together unless the file has a `task`. A problem names the line and the
# nested key: `config.yaml:12 (train.epochs)`.

SECTION_TASK = "sp500"
_KIND = "kind"
_KINDS = ("lstm",)
_IO = {"save_dir": "save_dir", "run_name": "name"}
_SETTINGS = tuple(name for name in KEYS if name != "task_options")
_EXAMPLES = {
    "data": "{npz_path: sp500_classification.npz}",
    "model": "{kind: lstm}",
    "train": "{epochs: 25}",
    "eval": "{threshold: 0.5}",
    "io": "{save_dir: results}",
}
_USUAL = "epochs, batch_size, lr, early_stop_patience, seed, device"
# Keys of each section.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "data": tuple(BY_SECTION["data"]),
    "model": (_KIND, *BY_SECTION["model"]),
    "train": _SETTINGS,
    "eval": tuple(BY_SECTION["eval"]),
    "io": tuple(_IO),
}


def infer_task(content: FileContent) -> FileContent:
    """The same, and the task that the sections belong to."""
    owned = [entry for entry in content.entries if _is_section(entry) and entry.key in BY_SECTION]
    if not owned:
        return content
    task_entry = next((entry for entry in content.entries if entry.key == "task"), None)
    places = {(entry.key, name): where for entry in owned for name, where in _named(entry).items()}
    if task_entry is not None and str(task_entry.raw).strip().lower() != SECTION_TASK:
        named = show_value(task_entry.raw)
        message = f"section {owned[0].key} holds options of task {SECTION_TASK}, but the task is {named}"
        hint = "write the options of another task as task_options: {name: value}"
        return _and_problem(content, Problem(message, hint, owned[0].where))
    if task_entry is not None:
        return content
    if ("model", _KIND) not in places or ("data", "npz_path") not in places:
        message = f"section {owned[0].key} belongs to no known task"
        hint = "set model.kind: lstm and data.npz_path: FILE, or task: sp500"
        return _and_problem(content, Problem(message, hint, owned[0].where))
    task = RawSetting(key="task", raw=SECTION_TASK, where=places["model", _KIND])
    return replace(content, entries=(*content.entries, task))


def flatten_sections(content: FileContent) -> FileContent:
    """Flatten every section; other content stays unchanged."""
    entries: list[RawSetting] = []
    problems = list(content.problems)
    for entry in content.entries:
        if not _is_section(entry):
            if entry.key in SECTIONS and entry.key not in KEYS:
                message = f"{entry.key} is {show_value(entry.raw)}, but it is a section"
                hint = _EXAMPLES[entry.key]
                problems.append(Problem(message, f"write {entry.key}: {hint}", entry.where))
            else:
                entries.append(entry)
            continue
        for name, where in _named(entry).items():
            setting = _setting(entry, name, where)
            if isinstance(setting, Problem):
                problems.append(setting)
            elif setting is not None:
                entries.append(setting)
    return FileContent(entries=tuple(entries), problems=tuple(problems))


def _is_section(entry: RawSetting) -> bool:
    return entry.key in SECTIONS and isinstance(entry.raw, dict)


def _named(entry: RawSetting) -> dict[str, str]:
    """Every name in the section, also without a value, and its location."""
    assert isinstance(entry.raw, dict), "a section is a mapping"
    lines = entry.parts or {f".{name}": entry.where for name in entry.raw}
    return {part[1:]: _place(line, f"{entry.key}{part}") for part, line in lines.items()}


def _place(line: str, path: str) -> str:
    return line if line.endswith(path) else f"{line} ({path})"  # --set names it already


def _setting(entry: RawSetting, name: str, where: str) -> RawSetting | Problem | None:
    """None: its name is known, and it has no value."""
    known = SECTIONS[entry.key]
    if name not in known:
        listed = ", ".join(known) if entry.key != "train" else f"{_USUAL}, and any other setting"
        hint = did_you_mean(name, known, otherwise=f"{entry.key} has {listed}")
        return Problem(
            f"section {entry.key} has no setting {show_value(name)}", hint, where, Mistake.UNKNOWN_KEY
        )
    assert isinstance(entry.raw, dict), "a section is a mapping"
    if name not in entry.raw:
        return None
    return _READERS[entry.key](f"{entry.key}.{name}", name, entry.raw[name], where)


def _of_train(_path: str, name: str, raw: Raw, where: str) -> RawSetting:
    return RawSetting(key=name, raw=raw, where=where)


def _of_io(_path: str, name: str, raw: Raw, where: str) -> RawSetting:
    return RawSetting(key=_IO[name], raw=raw, where=where)


def _of_model(path: str, name: str, raw: Raw, where: str) -> RawSetting | Problem | None:
    if name != _KIND:
        return _of_task(path, name, raw, where)
    if str(raw).strip().lower() in _KINDS:
        return None
    message = f"{path} is {show_value(raw)}, but it must be one of {', '.join(_KINDS)}"
    return Problem(message, f"set {path} to {_KINDS[0]}; for another model write a custom task", where)


def _of_task(path: str, name: str, raw: Raw, where: str) -> RawSetting | Problem:
    key = BY_SECTION[path.partition(".")[0]][name]
    try:
        if isinstance(raw, list | dict):
            raise Unreadable("it must be a single value")
        value = read_sp500_option(key, raw)
    except Unreadable as error:
        hint = f"set {path} to {key.example}, for example"
        return Problem(f"{path} is {show_value(raw)}, but {error.why}", hint, where)
    exactly: Raw = Quoted(value) if isinstance(value, str) else value  # a path of digits is no number
    return RawSetting(key="task_options", raw={name: exactly}, where=where, parts={f".{name}": where})


_READERS: dict[str, Callable[[str, str, Raw, str], RawSetting | Problem | None]] = {
    "data": _of_task,
    "model": _of_model,
    "train": _of_train,
    "eval": _of_task,
    "io": _of_io,
}


def _and_problem(content: FileContent, problem: Problem) -> FileContent:
    return replace(content, problems=(*content.problems, problem))


def read_file(path: Path) -> FileContent:
    suffix = path.suffix.lower()
    if suffix not in {".yaml", ".yml", ".toml"}:
        hint = "name a file that ends in .yaml, .yml or .toml"
        return FileContent(
            problems=(Problem(f"{path} is not a .yaml, .yml or .toml file", hint, "--config"),)
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        return FileContent(problems=(Problem(message, "check the path after --config", "--config"),))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problem = Problem("the file is not UTF-8 text", "save it as UTF-8", f"{path}:{line}")
        return FileContent(problems=(problem,))
    # Imported here: a command without a file should not pay for either parser.
    if suffix == ".toml":
        from paceline.config.toml_file import parse_toml

        return flatten_sections(infer_task(parse_toml(text, str(path))))
    from paceline.config.yaml_file import parse_yaml

    return flatten_sections(infer_task(parse_yaml(text, str(path))))
