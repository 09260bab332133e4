"""How maps of two folders differ, by hand in float64, and what is left out and said."""

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.ndimage import label
from scipy.stats import spearmanr

from segunc.core.errors import InputError
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import GuaranteedThreshold
from segunc.decisions.preparation import Preparation
from segunc.evaluation import map_differences
from segunc.evaluation.difference_tables import NOT_A_JUDGEMENT, format_differences, notes_of
from segunc.evaluation.map_differences import MapsDifference, compare_maps
from segunc.evaluation.map_pairs import ComparedMaps, MapsPair
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Region
from tests.maps.foreign import write_map
from tests.support.map_folders import SCORES, SIZE, maps_of, write_folder

NAMES = ("drive/a", "drive/b", "c")


def pair_of(
    first: Path,
    second: Path,
    scores: Sequence[str] | None = None,
    flag: dict[str, Threshold] | None = None,
    other_flag: dict[str, Threshold] | None = None,
) -> MapsPair:
    flag = flag or {}
    return MapsPair(
        ComparedMaps("A", MapsReader(first), flag),
        ComparedMaps("B", MapsReader(second), flag if other_flag is None else other_flag),
        scores,
    )


def compared(first: Path, second: Path, top: int = 10, **options: Any) -> MapsDifference:
    return compare_maps(pair_of(first, second, **options), top)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders over the same three frames."""
    first = write_folder(tmp_path / "A", {name: maps_of(i) for i, name in enumerate(NAMES)})
    second = write_folder(tmp_path / "B", {name: maps_of(9 + i) for i, name in enumerate(NAMES)})
    return first, second


def values_of(folder: Path, score: str) -> list[np.ndarray]:
    reader = MapsReader(folder)
    return [reader.read(name, score).astype(np.float64) for name in NAMES]


@pytest.mark.parametrize("score", SCORES)
def test_numbers_of_scores_are_those_by_hand(folders: tuple[Path, Path], score: str) -> None:
    numbers = {entry.score: entry for entry in compared(*folders).scores}[score]
    first, second = (values_of(folder, score) for folder in folders)
    correlations = [
        spearmanr(a.ravel(), b.ravel()).statistic for a, b in zip(first, second, strict=True)
    ]
    assert numbers.pixels == 3 * SIZE[0] * SIZE[1]
    assert numbers.means == pytest.approx((np.mean(first), np.mean(second)), abs=1e-12)
    expected = np.mean(np.abs(np.array(first) - np.array(second)))
    assert numbers.mean_difference == pytest.approx(expected, abs=1e-12)
    assert numbers.rank_correlation == pytest.approx(np.mean(correlations), abs=1e-12)


def test_changed_classes_are_those_by_hand(folders: tuple[Path, Path]) -> None:
    prediction = compared(*folders).prediction
    assert prediction is not None
    first, second = (
        np.array([MapsReader(folder).prediction(name) for name in NAMES]) for folder in folders
    )
    assert prediction.pixels == first.size
    assert prediction.changed == (first != second).sum()
    assert prediction.share == pytest.approx(np.mean(first != second))
    largest = prediction.changes[0]
    classes = ("road", "car", "sky")
    counts = {
        (before, after): int(((first == i) & (second == j)).sum())
        for i, before in enumerate(classes)
        for j, after in enumerate(classes)
        if i != j
    }
    assert largest.pixels == max(counts.values())
    assert counts[largest.before, largest.after] == largest.pixels
    assert len(prediction.changes) == 5


def test_equal_maps_do_not_differ(tmp_path: Path) -> None:
    frames = {"a": maps_of(1)}
    first = write_folder(tmp_path / "A", frames)
    second = write_folder(tmp_path / "B", frames)
    difference = compared(first, second)
    assert difference.prediction is not None
    assert difference.prediction.changed == 0
    assert difference.prediction.changes == ()
    entropy = difference.scores[0]
    assert entropy.mean_difference == 0
    assert entropy.rank_correlation == pytest.approx(1)


def test_frames_are_ranked_by_the_score_that_pages_show(tmp_path: Path) -> None:
    flat = {"prediction": np.zeros(SIZE, np.uint8), "entropy": np.zeros(SIZE, np.float32)}
    changes = {"a": 0.25, "b": 0.75, "c": 0.5}
    moved = {name: flat | {"entropy": flat["entropy"] + by} for name, by in changes.items()}
    first = write_folder(tmp_path / "A", dict.fromkeys(changes, flat))
    second = write_folder(tmp_path / "B", moved)
    difference = compared(first, second, top=2)
    assert difference.ranked_by == "mean absolute difference of entropy"
    assert [frame.name for frame in difference.most] == ["b", "c"]
    assert difference.most[0].value == pytest.approx(0.75, abs=1e-4)
    assert difference.scores[0].rank_correlation is None


def test_frames_of_equal_scores_are_ranked_by_changed_classes(tmp_path: Path) -> None:
    maps = {name: maps_of(i) for i, name in enumerate(NAMES)}
    first = write_folder(tmp_path / "A", maps)
    changed = {name: dict(values) for name, values in maps.items()}
    classes = changed["drive/b"]["prediction"].copy()
    classes[:4] = (classes[:4] + 1) % 3
    changed["drive/b"]["prediction"] = classes
    difference = compared(first, write_folder(tmp_path / "B", changed), top=1)
    assert [frame.name for frame in difference.most] == ["drive/b"]
    assert any("frames are ordered by the share of pixels" in note for note in difference.notes)


def test_frames_in_one_folder_alone_are_counted_and_said(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "A", {name: maps_of(1) for name in ("a", "b", "c")})
    second = write_folder(tmp_path / "B", {name: maps_of(2) for name in ("c", "d")})
    difference = compared(first, second)
    assert difference.frames == 1
    assert difference.pixels == SIZE[0] * SIZE[1]
    assert "2 frames are only in A, first a" in difference.notes
    assert "1 frame is only in B, first d" in difference.notes


def test_a_frame_of_another_image_is_left_out_and_said(tmp_path: Path) -> None:
    frames = {name: maps_of(1) for name in ("a", "b")}
    first = write_folder(tmp_path / "A", frames)
    second = write_folder(tmp_path / "B", frames, stamps={"a": "other", "b": "image of b"})
    difference = compared(first, second)
    assert difference.frames == 1
    assert [frame.name for frame in difference.most] == ["b"]
    (note,) = [note for note in difference.notes if "another image" in note]
    assert note.startswith("1 of the frames that both folders name left out")
    assert note.endswith("first a")


def test_frames_of_two_videos_are_not_compared(tmp_path: Path) -> None:
    frames = {"000001": maps_of(1)}
    first = write_folder(tmp_path / "A", frames, stamps={}, input_hash="one")
    second = write_folder(tmp_path / "B", frames, stamps={}, input_hash="two")
    with pytest.raises(InputError, match=r"no frame that both name has .* \(1 frame, first"):
        pair_of(first, second)


def test_frames_without_a_recorded_image_are_matched_by_name_which_is_said(tmp_path: Path) -> None:
    frames = {"a": maps_of(1)}
    first = write_folder(tmp_path / "A", frames, stamps={})
    second = write_folder(tmp_path / "B", frames)
    difference = compared(first, second)
    assert difference.frames == 1
    assert any("1 frame is matched by name alone" in note for note in difference.notes)


def test_folders_without_a_common_frame_are_refused_with_a_name_of_each(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "A", {"a": maps_of(1)})
    second = write_folder(tmp_path / "B", {"b": maps_of(1)})
    with pytest.raises(InputError, match=r"no frame in common: .* like a and b"):
        pair_of(first, second)


def test_names_that_a_mac_composes_otherwise_are_one_frame(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "A", {"caf\u00e9": maps_of(1)}, stamps={})
    second = write_folder(tmp_path / "B", {"cafe\u0301": maps_of(1)}, stamps={})
    assert compared(first, second).frames == 1


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("road", "sky", "car"), "class 1 is car in A and sky in B"),
        (("road", "car", "sky", "tree"), "A has 3 classes and B 4"),
    ],
)
def test_classes_that_differ_are_not_compared_and_it_is_said(
    tmp_path: Path, classes: Sequence[str], said: str
) -> None:
    frames = {"a": maps_of(1)}
    first = write_folder(tmp_path / "A", frames)
    second = write_folder(tmp_path / "B", frames, classes=classes)
    difference = compared(first, second)
    assert difference.prediction is None
    assert f"Predicted classes are not compared: {said}" in difference.notes
    assert difference.most[0].changed is None
    assert "Pixels whose predicted class changed" not in format_differences([difference])


def test_entropy_over_another_number_of_classes_has_another_scale(tmp_path: Path) -> None:
    frames = {"a": maps_of(1)}
    first = write_folder(tmp_path / "A", frames)
    second = write_folder(tmp_path / "B", frames, classes=("road", "car", "sky", "tree"))
    entropy = compared(first, second).scores[0]
    assert entropy.score == "entropy"
    assert entropy.scales_differ


def test_unbounded_scores_of_two_models_have_two_scales(folders: tuple[Path, Path]) -> None:
    difference = compared(*folders)
    assert [score.scales_differ for score in difference.scores] == [False, True]
    assert any(note.startswith("* deterministic-energy:") for note in notes_of(difference))


def test_unbounded_scores_of_one_model_have_one_scale(tmp_path: Path) -> None:
    frames = {"a": maps_of(1)}
    first = write_folder(tmp_path / "A", frames, base_sha256="same", draws=4)
    second = write_folder(tmp_path / "B", frames, base_sha256="same", draws=8)
    difference = compared(first, second)
    assert not any(score.scales_differ for score in difference.scores)
    assert "Both are of one model, whose settings differ in draws (4 and 8)" in difference.notes


def test_frames_of_another_size_are_left_out_and_said(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "A", {"a": maps_of(1), "b": maps_of(2)})
    second = write_folder(tmp_path / "B", {"a": maps_of(1, (12, 16)), "b": maps_of(2)})
    difference = compared(first, second)
    assert difference.frames == 1
    assert any("has maps of another size in each folder, first a" in n for n in difference.notes)


def test_folders_of_another_size_throughout_are_refused(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "A", {"a": maps_of(1)})
    second = write_folder(tmp_path / "B", {"a": maps_of(1, (12, 16))})
    with pytest.raises(InputError, match=r"can be compared: 1 of the frames .* another size"):
        compared(first, second)


def test_only_shared_scores_are_compared_and_the_others_are_said(tmp_path: Path) -> None:
    maps = maps_of(1)
    fewer = {name: maps[name] for name in ("prediction", "entropy")}
    first = write_folder(tmp_path / "A", {"a": maps})
    second = write_folder(tmp_path / "B", {"a": fewer})
    difference = compared(first, second)
    assert [score.score for score in difference.scores] == ["entropy"]
    assert "Only A has deterministic-energy" in difference.notes
    with pytest.raises(InputError, match="'deterministic-energy' has no maps in"):
        compared(first, second, scores=["deterministic-energy"])


def test_folders_that_share_nothing_are_refused(tmp_path: Path) -> None:
    write_map(tmp_path / "A" / "ours" / "a.npy", np.zeros(SIZE, np.float32))
    write_map(tmp_path / "B" / "theirs" / "a.npy", np.zeros(SIZE, np.float32))
    with pytest.raises(InputError, match="share no score, and A holds no prediction"):
        pair_of(tmp_path / "A", tmp_path / "B")


def test_pixels_without_a_value_do_not_count_and_are_said(tmp_path: Path) -> None:
    """Maps of another tool, which may hold NaN; class 255 is ignored."""
    generator = np.random.default_rng(4)
    first, second = generator.random((2, *SIZE))
    first[0] = np.nan
    second[:, 0] = np.inf
    ids, other_ids = generator.integers(0, 3, (2, *SIZE)).astype(np.uint8)
    ids[5] = 255
    for folder, values, classes in (("A", first, ids), ("B", second, other_ids)):
        write_map(tmp_path / folder / "mine" / "a.npy", values)
        write_map(tmp_path / folder / "prediction" / "a.png", classes)
    difference = compared(tmp_path / "A", tmp_path / "B")
    height, width = SIZE
    (score,) = difference.scores
    valid = np.isfinite(first) & np.isfinite(second)
    holes = height + width - 1
    assert score.pixels == height * width - holes
    expected = np.abs(first[valid] - second[valid]).mean()
    assert score.mean_difference == pytest.approx(expected, abs=1e-12)
    assert score.rank_correlation == pytest.approx(
        spearmanr(first[valid], second[valid]).statistic, abs=1e-12
    )
    assert difference.prediction is not None
    assert difference.prediction.pixels == (height - 1) * width
    said = "\n".join(difference.notes)
    assert f"{holes} pixels of mine are NaN or infinite in a folder" in said
    assert f"{width} pixels are of class 255" in said
    assert "Neither folder names its classes" in said


def region_of(path: Path, kept: np.ndarray) -> Region:
    assert cv2.imwrite(str(path), kept.astype(np.uint8) * 255)
    return Region(path)


def test_only_pixels_that_both_masks_keep_count(tmp_path: Path) -> None:
    kept = np.ones(SIZE, bool)
    kept[:6] = False
    other = np.ones(SIZE, bool)
    other[:, :8] = False
    frames = {"a": maps_of(1)}
    first = write_folder(tmp_path / "A", frames, region=region_of(tmp_path / "a.png", kept))
    second = write_folder(
        tmp_path / "B", {"a": maps_of(2)}, region=region_of(tmp_path / "b.png", other)
    )
    difference = compared(first, second)
    both = kept & other
    assert difference.pixels == both.sum()
    assert difference.scores[0].pixels == both.sum()
    assert difference.prediction is not None
    assert difference.prediction.pixels == both.sum()
    assert any(note.startswith("The masks of the folders differ") for note in difference.notes)


def blobs(*places: tuple[slice, slice]) -> dict[str, Any]:
    entropy = np.zeros(SIZE, np.float32)
    for place in places:
        entropy[place] = 0.8
    return {"prediction": np.zeros(SIZE, np.uint8), "entropy": entropy}


LARGE = (slice(2, 10), slice(2, 10))
MOVED = (slice(5, 13), slice(5, 13))
ELSEWHERE = (slice(14, 22), slice(20, 30))
SPECK = (slice(0, 2), slice(25, 28))


def regions_by_hand(values: np.ndarray, value: float, smallest: int) -> np.ndarray:
    numbers, count = label(values >= value, structure=np.ones((3, 3)))
    for number in range(1, count + 1):
        if (numbers == number).sum() < smallest:
            numbers[numbers == number] = 0
    return np.asarray(numbers)


def test_flagged_regions_are_those_by_hand(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "A", {"a": blobs(LARGE, ELSEWHERE, SPECK), "b": blobs()})
    second = write_folder(tmp_path / "B", {"a": blobs(MOVED), "b": blobs(ELSEWHERE)})
    flag = {"entropy": Threshold(0.5, smallest=20)}
    difference = compared(first, second, flag=flag)
    (flagged,) = difference.flagged
    numbers = []
    for folder in (first, second):
        reader = MapsReader(folder)
        numbers.append([regions_by_hand(reader.read(n, "entropy"), 0.5, 20) for n in ("a", "b")])
    for side, (own, other) in zip(flagged.sides, (numbers, numbers[::-1]), strict=True):
        assert side.frames == sum(bool(frame.any()) for frame in own)
        assert side.pixels == sum(int((frame > 0).sum()) for frame in own)
        regions = [set(np.unique(frame[frame > 0])) for frame in own]
        met = [set(np.unique(f[(f > 0) & (o > 0)])) for f, o in zip(own, other, strict=True)]
        assert side.regions == sum(map(len, regions))
        assert side.met == sum(map(len, met))
    assert [side.regions for side in flagged.sides] == [2, 2]
    assert [side.alone for side in flagged.sides] == [1, 1]
    assert flagged.pixels == 2 * SIZE[0] * SIZE[1]
    assert difference.ranked_by == "pixels that only one folder flags by entropy"
    assert difference.most[0].name == "a"
    differing = (numbers[0][0] > 0) != (numbers[1][0] > 0)
    assert difference.most[0].value == differing.sum()


def test_each_folder_may_have_its_own_threshold(tmp_path: Path) -> None:
    frames = {"a": blobs(LARGE)}
    first = write_folder(tmp_path / "A", frames)
    second = write_folder(tmp_path / "B", frames)
    flag = {"entropy": Threshold(0.5)}
    difference = compared(first, second, flag=flag, other_flag={"entropy": Threshold(0.9)})
    assert [side.regions for side in difference.flagged[0].sides] == [1, 0]


def guaranteed(**fields: Any) -> Threshold:
    """A threshold of a file of segunc threshold."""
    guarantee = GuaranteedThreshold(
        **{
            "score": "entropy",
            "value": 0.5,
            "form": "unit16",
            "control": "flagged-pixels",
            "method": "conformal",
            "level": 0.25,
            "confidence": None,
            "unit": "frame",
            "units": 30,
            "minimum_units": 3,
            "risk": 0.1,
            "bound": None,
            "promise": "Few pixels are flagged.",
            "condition": "It holds here.",
            "model": "",
            "settings": {},
            "frames": {},
            "command": "",
            "date": "",
            "segunc": "",
        }
        | fields
    )
    return Threshold(0.5, source="t.json", promise=guarantee.promise, guarantee=guarantee)


def test_the_margin_of_a_threshold_widens_regions(tmp_path: Path) -> None:
    near = (slice(2, 10), slice(12, 20))
    first = write_folder(tmp_path / "A", {"a": blobs(LARGE, near)})
    second = write_folder(tmp_path / "B", {"a": blobs()})
    flag = {"entropy": guaranteed(preparation=Preparation(margin=2))}
    difference = compared(first, second, flag=flag)
    side = difference.flagged[0].sides[0]
    assert side.regions == 1
    assert side.pixels == 12 * 22


def test_the_place_of_a_threshold_cuts_regions(tmp_path: Path) -> None:
    """Only what stands on class 1 is flagged: the lower half."""
    maps = blobs(LARGE, ELSEWHERE)
    maps["prediction"][12:] = 1
    first = write_folder(tmp_path / "A", {"a": maps})
    second = write_folder(tmp_path / "B", {"a": blobs()})
    place = Preparation(place=("car",), place_ids=(1,))
    flag = {"entropy": guaranteed(preparation=place)}
    difference = compared(first, second, flag=flag, other_flag={"entropy": Threshold(0.5)})
    side = difference.flagged[0].sides[0]
    assert side.regions == 1
    assert side.pixels == 8 * 10


def test_one_value_of_two_scales_is_said(folders: tuple[Path, Path]) -> None:
    difference = compared(*folders, flag={"deterministic-energy": Threshold(0.5)})
    said = "\n".join(notes_of(difference))
    assert "A threshold of deterministic-energy is a value of the scale of each folder" in said


def test_a_promise_is_said_with_its_condition(folders: tuple[Path, Path]) -> None:
    flag = {"entropy": guaranteed()}
    difference = compared(*folders, flag=flag, other_flag={"entropy": Threshold(0.5)})
    assert "The threshold of A, t.json: Few pixels are flagged. It holds here" in difference.notes


def test_the_text_never_says_which_is_better(folders: tuple[Path, Path]) -> None:
    text = format_differences([compared(*folders)])
    assert text.endswith(NOT_A_JUDGEMENT)
    assert "segunc evaluate" in NOT_A_JUDGEMENT
    assert "**B against A (baseline): 3 frames, 2,304 pixels**" in text
    assert "| any change" in text


def test_one_frame_is_in_memory_at_a_time(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame is let go before the next is read, and what is kept of it holds no map."""
    pair = pair_of(*folders)
    alive: list[Any] = []
    read = pair.read_frame

    def watched(frame: Any) -> Any:
        gc.collect()
        assert sum(reference() is not None for reference in alive) <= 1
        maps = read(frame)
        alive.append(weakref.ref(maps.scores["entropy"].values[0]))
        return maps

    monkeypatch.setattr(pair, "read_frame", watched)
    difference = compare_maps(pair, top=1)
    gc.collect()
    assert len(alive) == 3
    assert len(difference.most) == 1
    assert not any(reference() is not None for reference in alive)


def test_the_list_of_frames_holds_no_more_than_is_asked_for(folders: tuple[Path, Path]) -> None:
    counter = map_differences._Counter(pair_of(*folders), 2)
    for maps in counter.pair.read():
        counter.add(maps)
        assert len(counter.most) <= 2


def test_a_damaged_map_is_refused(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "entropy" / "c.png"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="was changed since it was written"):
        compared(*folders)


def test_a_run_that_has_not_finished_is_said(folders: tuple[Path, Path]) -> None:
    pair = pair_of(*folders)
    pair.second.reader.unfinished = "the run that writes B has not finished"
    said = "Frames are missing: the run that writes B has not finished"
    assert said in compare_maps(pair).notes


def test_scores_that_say_nothing_of_one_draw_are_said(tmp_path: Path) -> None:
    maps = maps_of(1)
    maps["epistemic"] = np.zeros(SIZE, np.float32)
    first = write_folder(tmp_path / "A", {"a": maps})
    second = write_folder(tmp_path / "B", {"a": maps}, draws=1)
    difference = compared(first, second)
    assert "epistemic" not in [score.score for score in difference.scores]
    assert any(note.startswith("Not compared: epistemic") for note in difference.notes)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("ab" * 32, "cd" * 32, "the temperature, which was fitted again in between"),
        (None, "cd" * 32, "the temperature (no temperature and a fitted temperature)"),
    ],
)
def test_a_temperature_that_was_fitted_again_is_said_in_words(
    tmp_path: Path, before: str | None, after: str, words: str
) -> None:
    frames = {"a": maps_of(1)}
    first = write_folder(tmp_path / "A", frames, base_sha256="same", calibrator_sha256=before)
    second = write_folder(tmp_path / "B", frames, base_sha256="same", calibrator_sha256=after)
    notes = compared(first, second).notes
    assert f"Both are of one model, whose settings differ in {words}" in notes
