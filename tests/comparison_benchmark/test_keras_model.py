"""The network of `paceline benchmark keras` is the documented one; with real TensorFlow."""

import os
import subprocess
import sys

import pytest
from tests.fixtures.processes.command import ROOT

PROBE = """
from paceline.comparison.benchmark.keras_backend import Normalisation, _default_callbacks, build_model
from paceline.comparison.benchmark.keras_schema import KerasSettings
model = build_model(KerasSettings(), Normalisation(means=(0, 0, 0), deviations=(1, 1, 1)))
print("filters", *(layer.filters for layer in model.layers if "conv" in layer.name))
print("dense", *(layer.units for layer in model.layers if "dense" in layer.name))
for kind in ("batch_normalization", "dropout"):
    print(kind, sum(kind in layer.name for layer in model.layers))
print("parameters", model.count_params())
print("callbacks", *(type(one).__name__ for one in _default_callbacks()))
"""


@pytest.mark.soak
def test_it_has_three_blocks_a_dense_layer_of_512_about_three_million_parameters_and_both_callbacks() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    messages = {name: words for name, *words in (line.split() for line in result.stdout.splitlines())}
    assert messages["filters"] == ["64", "64", "128", "128", "256", "256"]
    assert messages["dense"] == ["512", "10"]
    assert (messages["batch_normalization"], messages["dropout"]) == (["7"], ["4"])
    assert 3_000_000 < int(messages["parameters"][0]) < 3_300_000
    assert messages["callbacks"] == ["ReduceLROnPlateau", "EarlyStopping"]
