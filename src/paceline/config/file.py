"""What does the config file say? Chooses YAML or TOML by the file's ending."""

from pathlib import Path

from paceline.config.sections import in_flat_keys, with_task
from paceline.config.written import FileContent
from paceline.errors import Problem


def read_file(path: Path) -> FileContent:
    suffix = path.suffix.lower()
    if suffix not in {".yaml", ".yml", ".toml"}:
        hint = "name a file that ends in .yaml, .yml or .toml"
        return FileContent(problems=(Problem(f"{path} is no config file by its ending", hint, "--config"),))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        what = f"cannot read {path}: {error.strerror}"
        return FileContent(problems=(Problem(what, "check the path after --config", "--config"),))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problem = Problem("the file is not UTF-8 text", "save it as UTF-8", f"{path}:{line}")
        return FileContent(problems=(problem,))
    # Imported here: a command without a file should not pay for either parser.
    if suffix == ".toml":
        from paceline.config.toml_file import parse_toml

        return in_flat_keys(with_task(parse_toml(text, str(path))))
    from paceline.config.yaml_file import parse_yaml

    return in_flat_keys(with_task(parse_yaml(text, str(path))))
