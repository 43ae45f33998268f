"""The learners' pages hold the promised diagram, times, symptoms, cheat sheet and links."""

import re
from xml.etree import ElementTree

import pytest
from docs.pages import ROOT, links

DOCS = ROOT / "docs"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_readme_shows_how_the_parts_belong_together() -> None:
    (picture,) = re.findall(r"!\[([^\]]+)\]\(docs/pictures/architecture\.svg\)", text_of("README.md"))
    assert len(picture.split()) > 15, "the picture has a text alternative"
    drawn = ElementTree.fromstring(text_of("docs/pictures/architecture.svg"))
    words = " ".join("".join(drawn.itertext()).split())
    for part in ("paceline train", "plan", "launcher", "worker", "coordinator", "run folder", "dashboard"):
        assert part in words


def test_the_checklist_of_the_first_half_hour_gives_times() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*?) \|$", text_of("docs/start.md"), re.M)
    assert [number for number, *_ in rows] == [str(n) for n in range(1, len(rows) + 1)]
    assert len(rows) >= 8
    assert sum(bool(re.search(r"\d+ (s|min)\b", about)) for _, _, about, _ in rows) >= len(rows) - 1


@pytest.mark.parametrize(
    "symptom",
    [
        "Pods stay pending",
        "Workers do not connect",
        "Out of memory",
        "No speed-up",
        "The accuracy is not that of one worker",
    ],
)
def test_a_symptom_has_its_section_with_a_command(symptom: str) -> None:
    (section,) = re.findall(
        rf"^## {symptom}$(.*?)(?=^## |\Z)", text_of("docs/troubleshooting.md"), re.M | re.S
    )
    assert "paceline " in section


def test_the_quick_reference_is_one_sheet() -> None:
    assert len(text_of("docs/quick-reference.md").splitlines()) <= 70


def test_rays_and_kuberays_own_pages_are_named() -> None:
    named = links(text_of("docs/troubleshooting.md"))
    assert any(link.startswith("https://docs.ray.io/en/latest/") for link in named)
    assert any("docs.ray.io/en/latest/cluster/kubernetes/" in link for link in named)
