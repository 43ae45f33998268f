"""Can everybody tell the phases apart? Contrast, and distance in four kinds of vision."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

PALETTE = json.loads((Path(__file__).parents[2] / "dashboard" / "src" / "palette.json").read_text())
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_phase_stands_out_from_the_ground(theme: str) -> None:
    ground = lightness(linear(PALETTE[theme]["background"]))
    for name, text in PALETTE[theme]["phases"].items():
        high, low = sorted((lightness(linear(text)), ground), reverse=True)
        contrast = (high + 0.05) / (low + 0.05)
        assert contrast >= 3, (name, contrast)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_phases_look_alike(theme: str, vision: str) -> None:
    seen = {name: lab(VISIONS[vision] @ linear(text)) for name, text in PALETTE[theme]["phases"].items()}
    for one, other in combinations(seen, 2):
        distance = float(np.linalg.norm(seen[one] - seen[other]))
        assert distance >= 20, (one, other, distance)


def test_every_phase_of_a_step_has_a_colour() -> None:
    from paceline.events.schema import PHASES

    known = {*PALETTE["light"]["phases"], *PALETTE["same_as"]}
    assert known.issuperset(PHASES)
    assert PALETTE["light"]["phases"].keys() == PALETTE["dark"]["phases"].keys()
