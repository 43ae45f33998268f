"""The generated reference matches the code and is complete."""

import click
import pytest
from docs.pages import ROOT, anchors

from paceline.cli.commands import COMMANDS, RENAMED
from paceline.cli.main import cli
from paceline.config.keys import KEYS
from paceline.core.error_catalog.index import ERROR_CATALOG
from paceline.core.errors import ExitCode
from paceline.events.schema import COLUMN_KINDS, PLAIN_KINDS
from paceline.plan.catalog import MODES, TASKS

FOLDER = ROOT / "docs" / "reference"
Pages = dict[str, str]


@pytest.fixture(scope="module")
def made() -> Pages:
    from docs.generate import pages  # imports torch, through the laws: not while tests are collected

    return pages()


def test_the_generated_pages_are_up_to_date(made: Pages) -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    stale = [name for name in sorted({*made, *written}) if made.get(name) != written.get(name)]
    assert not stale, "docs/reference is out of date: run `make docs`"


def test_the_types_of_the_python_api_are_up_to_date() -> None:
    from docs.python_page import STUB, stub

    assert STUB.read_text(encoding="utf-8") == stub(), "src/paceline/__init__.pyi is stale: run `make docs`"


def test_every_public_name_of_the_python_api_is_listed(made: Pages) -> None:
    import paceline

    for name in paceline.__all__:
        assert name == "__version__" or f"paceline.{name}" in made["python.md"]


def test_making_the_pages_again_gives_the_same_text(made: Pages) -> None:
    from docs.generate import pages

    assert pages() == made


def test_every_command_has_a_section(made: Pages) -> None:
    context = click.Context(cli, info_name="paceline")
    results = [(name, cli.get_command(context, name)) for name in COMMANDS if name not in RENAMED]
    paths = {f"paceline-{name}" for name, _ in results}
    for name, command in results:
        if isinstance(command, click.Group):
            paths |= {f"paceline-{name}-{member}" for member in command.list_commands(context)}
    assert "paceline-coordinator-start" in paths, "groups have sections too"
    assert paths <= anchors(made["cli.md"])


def test_every_method_and_message_of_the_coordinator_is_listed(made: Pages) -> None:
    from paceline.coordinator.proto import cluster_pb2 as pb
    from paceline.coordinator.server.access_policy import METHODS

    page = made["grpc.md"]
    assert {name.lower() for name in pb.DESCRIPTOR.message_types_by_name} <= anchors(page)
    assert {name.lower() for name in pb.DESCRIPTOR.enum_types_by_name} <= anchors(page)
    for method in METHODS:
        assert f"| `{method.rpartition('/')[2]}` | " in page


def test_every_setting_has_a_section_with_its_flag_and_variable(made: Pages) -> None:
    page = made["config.md"]
    assert set(KEYS) <= anchors(page)
    for key in KEYS.values():
        assert f"`{key.flag}`" in page
        assert f"`{key.variable}`" in page


def test_every_event_and_every_field_is_explained(made: Pages) -> None:
    page = made["events.md"]
    for name in (*PLAIN_KINDS, *(field for fields in COLUMN_KINDS.values() for field in fields)):
        assert f"| `{name}` |" in page
    assert set(COLUMN_KINDS) <= anchors(page)


def test_every_exit_code_has_a_meaning(made: Pages) -> None:
    for exit_code in ExitCode:
        assert f"\n| {int(exit_code)} | " in made["exit-codes.md"]


def test_every_error_is_listed(made: Pages) -> None:
    assert {code.lower() for code in ERROR_CATALOG} <= anchors(made["errors.md"])


def test_every_message_of_the_product_is_under_its_code(made: Pages) -> None:
    assert "boto3" in made["errors.md"].partition("\n## E201")[2].partition("\n## E202")[0]


def test_every_law_is_listed(made: Pages) -> None:
    from paceline.laws.runner import LAWS

    for law in LAWS:
        assert f"| `{law.id}` | " in made["laws.md"]


def test_every_mode_and_task_is_listed_and_every_mode_is_explained(made: Pages) -> None:
    for name in (*MODES, *TASKS):
        assert f"| `{name}` | " in made["modes.md"]
    explained = (ROOT / "docs" / "concepts" / "modes.md").read_text(encoding="utf-8")
    assert set(MODES) <= anchors(explained)
