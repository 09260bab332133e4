"""Names of images and labels that `evaluate` matches and that `init` pairs: both decide alike."""

from pathlib import Path

import pytest

from segunc.core.errors import InputError
from segunc.data.layouts import match_labels
from segunc.data.pairing import find_kinds

ROOT = Path("/set")
Pairs = dict[str, str]

PAIRED: dict[str, Pairs] = {
    "the same name": {"a1": "a1", "a2": "a2"},
    "an ending of labels": {"a1": "a1_label", "a2": "a2_label"},
    "Cityscapes": {
        "x_1_leftImg8bit": "x_1_gtFine_labelIds",
        "x_2_leftImg8bit": "x_2_gtFine_labelIds",
    },
    "ACDC": {"f1_rgb_anon": "f1_gt_labelTrainIds", "f2_rgb_anon": "f2_gt_labelTrainIds"},
    "two endings": {"a1_rgb": "a1_labels", "a2_rgb": "a2_labels"},
    "another form of Unicode": {"caf\u00e9_1": "cafe\u0301_1", "caf\u00e9_2": "cafe\u0301_2"},
    "folders": {"d1/a": "d1/a", "d2/a": "d2/a"},
}
UNPAIRED = {
    "a name that is longer by a number": (["clip"], ["clip_0002"]),
    "other names": (["a1", "a2"], ["b1", "b2"]),
    "one label for two drives": (["d1/a", "d2/a"], ["a"]),
    "one label for two cameras": (["a1_rgb", "a1_image"], ["a1_label"]),
}
LEARNT: dict[str, Pairs] = {
    "an ending that is not known": {"a1": "a1_L", "a2": "a2_L"},
    "a beginning": {"a1": "mask_a1", "a2": "mask_a2"},
}


def bare_name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def matched(frames: list[str], labels: list[str]) -> Pairs:
    """Return the pairs that `evaluate` makes; none where it refuses the names."""
    folder = ROOT / "labels"
    paths = [folder / f"{name}.png" for name in labels]
    try:
        label_of = match_labels(folder, paths, frames)
    except InputError:
        return {}
    return {frame: bare_name(path, folder) for frame, path in label_of.items()}


def paired(images: list[str], labels: list[str]) -> Pairs:
    """Return the pairs that `init` makes of one kind of labels; none where it refuses the names."""
    image_paths = [Path("images", f"{name}.png") for name in images]
    label_paths = [Path("labels", f"{name}.png") for name in labels]
    try:
        (kind,) = find_kinds(ROOT, image_paths, label_paths)
    except InputError:
        return {}
    pairs = {}
    for image, label in kind.label_of.items():
        pairs[bare_name(image, Path("images"))] = bare_name(label, Path("labels"))
    return pairs


@pytest.mark.parametrize("names", PAIRED)
def test_both_make_the_same_pairs(names: str) -> None:
    pairs = PAIRED[names]
    assert matched([*pairs], [*pairs.values()]) == pairs
    assert paired([*pairs], [*pairs.values()]) == pairs


@pytest.mark.parametrize("names", UNPAIRED)
def test_both_make_no_pair(names: str) -> None:
    images, labels = UNPAIRED[names]
    assert matched(images, labels) == {}
    assert paired(images, labels) == {}


@pytest.mark.parametrize("names", LEARNT)
def test_init_alone_learns_a_rule_of_the_whole_set(names: str) -> None:
    pairs = LEARNT[names]
    assert matched([*pairs], [*pairs.values()]) == {}
    assert paired([*pairs], [*pairs.values()]) == pairs
