"""The public names: exactly these, each importable and documented, and none of them heavy before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import segunc

REPOSITORY = Path(__file__).resolve().parents[1]
PUBLIC = [
    "ABNN",
    "ABNNTask",
    "AffineLayout",
    "ConversionReport",
    "InputError",
    "NetworkDescription",
    "Prediction",
    "Sampler",
    "SegmentationNetwork",
    "build_network",
    "convert",
    "decode_unit",
    "encode_unit",
    "load_model",
    "load_network",
    "save_network",
    "save_posterior",
]


def test_the_public_names_are_these() -> None:
    assert segunc.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(segunc))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_importable_and_documented(name: str) -> None:
    value = getattr(segunc, name)
    assert value.__name__ == name
    assert value.__module__.startswith("segunc.")
    # A dataclass or a NamedTuple without a docstring gets its signature for one.
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Samplr'"):
        _ = segunc.Samplr


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, segunc; print([m for m in ('torch', 'numpy', 'cv2', 'lightning') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(segunc.__file__).with_name("py.typed").is_file()
