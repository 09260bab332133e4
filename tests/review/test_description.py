"""Settings of a posterior in words, and manifests from before they were recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from segunc.maps.reader import MapsReader
from segunc.review.description import describe_model, setting_words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ""),
        ({"alpha": 0.1, "scope": "all", "scale": None}, "alpha 0.1, scope all"),
        ({"prior_scale": 1e-3, "effective_pixels": 100000.0}, "prior scale 0.001, effective pixels 100000"),
        ({"flip": True, "scales": [1.0, 0.75]}, "flip True, scales 1 0.75"),
        ({"layers": ["a", "b", "c", "d", "e"]}, "5 layers"),
        ({"parts": [{"method": "abnn"}, {"method": "swag"}]}, "2 parts"),
        ({"target": {"temperature": 0.5}, "states": 4}, "target (temperature 0.5), states 4"),
    ],
)
def test_settings_in_words(settings: dict[str, object], words: str) -> None:
    assert setting_words(settings) == words


def test_an_older_manifest_shows_its_alpha(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["model"]["parameters"], manifest["model"]["provenance"]
    manifest["model"]["alpha"] = 0.07
    (copy / "manifest.json").write_text(json.dumps(manifest))
    facts = dict(describe_model(MapsReader(copy))["facts"])
    assert facts["Parameters"] == "alpha 0.07"
    assert "Made with" not in facts
