"""An image carries the commit that it was built from, and tags name that commit."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.containers.engine import BASE, EngineHere, registry_at
from tests.fixtures.processes.command import paceline
from tests.image_builds.test_entries import told

from paceline.images.build.engine import find_engine
from paceline.images.push.references import Commit
from paceline.images.revision import REVISION_LABEL, ImageIdentity, commit_of, identify, revision_labels

IMAGE = "localhost/carries:1"
SHA = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> str:
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "x", "--allow-empty")
    return git(folder, "rev-parse", "HEAD")


def revision(image: str = IMAGE) -> str | None:
    identity = identify(find_engine("podman"), image)
    assert identity is not None
    return identity.revision


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (SHA, Commit(sha=SHA, is_dirty=False)),
        (f"{SHA}-dirty", Commit(sha=SHA, is_dirty=True)),
        ("", None),
        ("22.04", None),
        (f"{SHA}-other", None),
    ],
)
def test_a_label_that_names_no_commit_is_none(label: str, expected: Commit | None) -> None:
    assert ImageIdentity(id="x", labels={REVISION_LABEL: label}).commit == expected


def test_a_base_image_s_label_is_emptied_but_not_one_of_the_dockerfile() -> None:
    assert revision_labels(None, "FROM a\n") == (f"{REVISION_LABEL}=",)
    assert revision_labels(None, f"FROM a\nLABEL {REVISION_LABEL}=$SHA\n") == ()
    dirty = Commit(sha=SHA, is_dirty=True)
    assert revision_labels(dirty, f"LABEL {REVISION_LABEL}=x\n") == (f"{REVISION_LABEL}={SHA}-dirty",)


def test_a_dockerfile_that_git_does_not_have_is_not_the_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    (tmp_path / "a").write_text("a")
    sha = commit(tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM a\n")
    assert commit_of(tmp_path) == Commit(sha=sha, is_dirty=False)
    assert commit_of(tmp_path, "Dockerfile") == Commit(sha=sha, is_dirty=True)


def test_tags_say_what_was_built_and_not_what_the_folder_is(here: EngineHere, project: Path) -> None:
    (project / "Dockerfile").write_text(f"FROM {BASE}\nCOPY Dockerfile /\nUSER 1000\n")
    first = commit(project)
    git(project, "tag", "v1.4.2")
    built = told("build", str(project), "--tag", IMAGE)
    assert (built["revision"], revision()) == (first, first)

    (project / "Dockerfile").write_text(f"FROM {BASE}\nCOPY Dockerfile /two\nUSER 1000\n")
    commit(project)
    with registry_at(project.parent / "registry") as address:
        words = ["push", IMAGE, "--to", f"{address}/x", "--tags", "git-sha", "--tags", "auto", "--engine"]
        done = paceline("image", *words, "podman", "--json", folder=project)
        assert done.code == 0, done.out + done.err
        pushed = json.loads(done.out)["data"]
        assert [sent["name"] for sent in pushed["sent"]] == [
            f"{address}/x:{first[:12]}",
            f"{address}/x:1.4.2",
        ]
        assert (pushed["revision"], pushed["image_id"]) == (first, built["image_id"])

        here.podman("build", "--quiet", "--tag", "localhost/unlabelled:1", str(project))
        words = ["push", "localhost/unlabelled:1", "--to", f"{address}/x", "--tags", "git-sha"]
        refused = paceline("image", *words, "--engine", "podman", folder=project)
        assert refused.code == 3
        assert REVISION_LABEL in refused.err


@pytest.mark.usefixtures("here")
def test_a_changed_file_and_a_fix_are_marked_and_without_git_there_is_no_revision(project: Path) -> None:
    (project / "Dockerfile").write_text(f"FROM {BASE}\nUSER 1000\n")
    told("build", str(project), "--tag", IMAGE)
    assert revision() is None

    sha = commit(project)
    (project / "Dockerfile").write_text(f"FROM {BASE}\nRUN true\nUSER 1000\n")
    assert told("build", str(project), "--tag", IMAGE)["revision"] == f"{sha}-dirty"

    (project / "Dockerfile").write_text(
        f"FROM {BASE}\nCOPY requirements.txt .\nRUN pip install -r requirements.txt\nUSER 1000\n"
    )
    (project / "requirements.txt").write_text("transformers==4.44.2\ntokenizers==0.21.1\n")
    sha = commit(project)
    built = told("build", str(project), "--tag", IMAGE)
    assert built["fixes"]
    assert built["revision"] == f"{sha}-dirty", "the fix is in no commit"
