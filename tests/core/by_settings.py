"""Provocations of E0 and E1: the command line and the settings."""

from pathlib import Path

from tests.core.provoked import Codes, Provocation, guarded, printed_codes, raised

from paceline.api.arguments import import_name
from paceline.cli.errors import Terminated
from paceline.config.environment import read_world


def _raise(error: BaseException) -> Codes:
    def body() -> None:
        raise error

    return guarded(body)


def _bug(_folder: Path) -> Codes:
    return _raise(ZeroDivisionError("on purpose"))


def _taken_folder(folder: Path) -> Codes:
    (folder / "plan.json").write_text("{}")
    return printed_codes(folder, "plan", "--run-dir", ".")


def _bad_rules(folder: Path) -> Codes:
    (folder / "rules.yaml").write_text("rules: [{name: X, severity: sometimes}]")
    return printed_codes(folder, "alerts", "check", str(folder / "rules.yaml"))


def _bad_manifest(folder: Path) -> Codes:
    (folder / "job.yaml").write_text("apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: X_Y}\nspec: {}\n")
    return printed_codes(folder, "job", "validate", str(folder / "job.yaml"))


def _used_search_folder(folder: Path) -> Codes:
    (folder / "note.txt").write_text("something else")
    return printed_codes(folder, "tune", "--search", "lr=0.1,0.2", "--out", str(folder))


PROVOCATIONS: dict[str, Provocation] = {
    "E001": _bug,
    "E002": lambda folder: printed_codes(folder, "trian"),
    "E003": lambda folder: printed_codes(folder, "plan", "--color", "sometimes"),
    "E004": lambda _: _raise(KeyboardInterrupt()),
    "E005": lambda _: _raise(Terminated()),
    "E100": lambda folder: printed_codes(folder, "lab", "run", "nothing-known"),
    "E101": lambda folder: printed_codes(folder, "plan", "--set", "stepz=3"),
    "E102": lambda folder: printed_codes(folder, "plan", "--steps", "0"),
    "E103": lambda folder: printed_codes(folder, "plan", "--steps", "3", "--set", "steps=4"),
    "E104": lambda folder: printed_codes(folder, "plan", "--config", str(folder / "nothing.yaml")),
    "E105": lambda folder: printed_codes(folder, "plan", "--mode", "ssgd", "--staleness", "3"),
    "E106": _taken_folder,
    "E107": lambda _: raised(lambda: import_name(lambda: None, "task")),
    "E108": lambda folder: printed_codes(
        folder, "data", "prepare", "sp500", "--csv", str(folder / "nothing.csv")
    ),
    "E109": _bad_manifest,
    "E110": _bad_rules,
    "E111": lambda _: raised(lambda: read_world({"RANK": "1"})),
    "E112": _used_search_folder,
    "E113": lambda folder: printed_codes(folder, "image", "check", str(folder / "nowhere")),
    "E114": lambda folder: printed_codes(folder, "coordinator", "status", "--at", "somewhere"),
}
