"""Phase colours are distinguishable and the same in the dashboard and the HTML report.

Checked: contrast, distance in four kinds of colour vision, and that a delay does not look like an error.
"""

import json
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.fixtures.processes.command import ROOT

from paceline.comparison.report.figures import phase_figure
from paceline.comparison.report.svg import colour_class
from paceline.core.html_page import page
from paceline.events.schema import PHASES

PALETTE = json.loads((ROOT / "src" / "paceline" / "core" / "palette.json").read_text())
Colour = NDArray[np.float64]
# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(text: str) -> Colour:
    values = np.array([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lightness(colour: Colour) -> float:
    return float(colour @ np.array([0.2126, 0.7152, 0.0722]))


def lab(colour: Colour) -> Colour:
    x = (TO_XYZ @ np.clip(colour, 0, 1)) / np.array([0.9505, 1.0, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def colours(theme: str) -> dict[str, str]:
    return {**PALETTE[theme]["phases"], "error": PALETTE[theme]["error"]}


def chroma(text: str) -> float:
    _, a, b = lab(linear(text))
    return float(np.hypot(a, b))


def hue(text: str) -> float:
    """Degrees; red is near 30."""
    _, a, b = lab(linear(text))
    return float(np.degrees(np.arctan2(b, a)) % 360)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_phase_stands_out_from_the_ground(theme: str) -> None:
    ground = lightness(linear(PALETTE[theme]["background"]))
    for name, text in colours(theme).items():
        high, low = sorted((lightness(linear(text)), ground), reverse=True)
        contrast = (high + 0.05) / (low + 0.05)
        assert contrast >= 3, (name, contrast)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_phases_have_similar_colours(theme: str, vision: str) -> None:
    seen = {name: lab(VISIONS[vision] @ linear(text)) for name, text in colours(theme).items()}
    for one, other in combinations(seen, 2):
        distance = float(np.linalg.norm(seen[one] - seen[other]))
        assert distance >= 20, (one, other, distance)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_intended_delay_is_calm_and_an_error_is_red(theme: str) -> None:
    delay, error = PALETTE[theme]["phases"]["delay"], PALETTE[theme]["error"]
    assert chroma(delay) < 30 < chroma(error)
    assert 70 < hue(delay) < 330
    assert hue(error) < 70


def test_every_phase_of_a_step_has_a_colour() -> None:
    for theme in ("light", "dark"):
        assert list(PALETTE[theme]["phases"]) == list(PHASES)


def test_the_report_draws_phases_in_the_same_colours() -> None:
    text = page("report")
    for name in PHASES:
        for theme in ("light", "dark"):
            assert f"--phase_{name}:{PALETTE[theme]['phases'][name]}" in text
    figure = phase_figure({"ssgd": dict.fromkeys(PHASES, 1 / len(PHASES))}, {"ssgd": "ssgd"})
    assert figure is not None
    drawn = {name: colour_class(colour) for name, colour, _ in figure.bars[0].parts}
    assert drawn == {name: f"phase_{name}" for name in PHASES}
