"""An installation never loses what a user wrote, whatever was there before."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.skills.bundle import FilePath
from paceline.skills.changes import Action, Digest, ShippedUnit, plan_install, plan_uninstall, updated_record

ENTRY = FilePath("skills/a/SKILL.md")
SCRIPT = FilePath("skills/a/scripts/a.sh")
OLD = FilePath("skills/a/old.md")
PATHS = (ENTRY, SCRIPT)
Digests = dict[FilePath, Digest]

versions = st.sampled_from([Digest("v1"), Digest("v2"), Digest("the user's")])
folders = st.dictionaries(st.sampled_from([*PATHS, OLD]), versions)
records = st.dictionaries(st.sampled_from([*PATHS, OLD]), st.sampled_from([Digest("v1"), Digest("v2")]))
SHIPPED = {ENTRY: Digest("v2"), SCRIPT: Digest("v2")}
UNIT = ShippedUnit(entry=ENTRY, digests=SHIPPED)


def retired(record: Digests) -> list[FilePath]:
    return [path for path in record if path not in SHIPPED]


def installed(present: Digests, record: Digests) -> tuple[Digests, Digests]:
    """The folder and the record afterwards."""
    changes = plan_install([UNIT], retired(record), present, record)
    after = dict(present)
    for change in changes:
        if change.action in (Action.CREATED, Action.UPDATED):
            after[change.path] = SHIPPED[change.path]
        elif change.action is Action.REMOVED:
            del after[change.path]
    return after, updated_record(changes, SHIPPED, record)


@given(present=folders, record=records)
def test_what_is_neither_shipped_nor_recorded_stays(present: Digests, record: Digests) -> None:
    after, new_record = installed(present, record)
    for path, seen in present.items():
        if seen != record.get(path) and seen != SHIPPED.get(path):
            assert after[path] == seen
    removed = plan_uninstall(list(new_record), after, new_record)
    for change in removed:
        if change.action is Action.REMOVED:
            assert after[change.path] == new_record[change.path]
            assert after[change.path] != Digest("the user's")


@given(present=folders, record=records)
def test_a_second_installation_changes_nothing(present: Digests, record: Digests) -> None:
    after, new_record = installed(present, record)
    again = plan_install([UNIT], retired(new_record), after, new_record)
    assert {change.action for change in again} <= {Action.UNCHANGED, Action.KEPT}
    assert installed(after, new_record) == (after, new_record)


def test_a_skill_of_the_user_with_the_same_name_gets_no_file_of_ours() -> None:
    changes = plan_install([UNIT], [], {ENTRY: Digest("the user's")}, {})
    assert [(change.path, change.action) for change in changes] == [(ENTRY, Action.KEPT)]


def test_an_older_version_is_updated_and_a_file_that_is_no_longer_shipped_is_removed() -> None:
    before = {ENTRY: Digest("v1"), SCRIPT: Digest("the user's"), OLD: Digest("v1")}
    after, record = installed(before, {ENTRY: Digest("v1"), SCRIPT: Digest("v1"), OLD: Digest("v1")})
    assert after == {ENTRY: Digest("v2"), SCRIPT: Digest("the user's")}
    assert record == {ENTRY: Digest("v2"), SCRIPT: Digest("v1")}
