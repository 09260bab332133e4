"""What a model returns: typed fields, what they say of themselves, copies, figures."""

import copy
import doctest
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from matplotlib import pyplot, rcParams, style
from matplotlib.figure import Figure
from PIL import Image

import segunc
from segunc.colours import colour_table
from segunc.core.errors import InputError
from segunc.posteriors import image_maps
from segunc.posteriors.image_maps import BatchMaps, ImageMaps, ScoreFields
from segunc.posteriors.map_figure import (
    MOST_CLASSES,
    bar_of,
    legend_of,
    panel_size,
    usual_scores,
)
from segunc.posteriors.map_origin import Origin
from segunc.scores import _TABLE, SCORES
from tests.outside.score import MARGIN
from tests.posteriors.small_models import CLASSES, IMAGE, small_model

TWO = ("entropy", "deterministic-energy")
HALF = ((0.5,),)
LONG_NAMES = (
    "deterministic-max-logit",
    "deterministic-energy",
    "logit-variance",
    "set-size",
    "anomaly",
    "mean-energy",
)
"""Scores with long titles and long meanings."""


@pytest.fixture(scope="module")
def model() -> segunc.Model:
    return small_model(palette=((255, 0, 0), (0, 255, 0), (0, 0, 255)))


@pytest.fixture(scope="module")
def maps(model: segunc.Model) -> ImageMaps:
    return model(IMAGE, draws=4, scores=TWO)


@pytest.fixture(scope="module")
def batch(model: segunc.Model) -> BatchMaps:
    return model([IMAGE, IMAGE[::-1]], draws=4, scores=TWO)


def made(scores: dict[str, Any], prediction: Any = None, **fields: Any) -> ImageMaps:
    """Return maps of these scores."""
    values = {name: np.asarray(value, np.float32) for name, value in scores.items()}
    shape = next(iter(values.values())).shape
    classes = np.zeros(shape, np.uint8) if prediction is None else prediction
    return ImageMaps(classes, values, **fields)


# Fields.


def test_every_score_of_the_table_has_a_typed_field() -> None:
    fields = get_type_hints(ScoreFields)
    assert list(fields) == [score.name.replace("-", "_") for score in _TABLE]
    assert {str(kind) for kind in fields.values()} == {str(image_maps.ScoreMap)}


def test_no_score_has_the_name_of_a_field() -> None:
    assert not {name.replace("-", "_") for name in SCORES} & set(dir(ImageMaps))


@pytest.mark.parametrize("of", ["maps", "batch"])
def test_scores_are_fields_and_entries(of: str, request: pytest.FixtureRequest) -> None:
    answer: Any = request.getfixturevalue(of)
    assert np.array_equal(answer.deterministic_energy, answer.scores["deterministic-energy"])
    assert np.array_equal(answer["deterministic-energy"], answer.scores["deterministic-energy"])
    assert {"entropy", "deterministic_energy", "prediction", "plot", "save"} <= set(dir(answer))
    assert "msp" not in dir(answer)
    assert "entropy" in answer
    assert "msp" not in answer
    assert hasattr(answer, "entropy")
    assert not hasattr(answer, "msp")


def test_maps_say_what_their_image_and_its_classes_are(maps: ImageMaps) -> None:
    assert np.array_equal(maps.image, IMAGE)
    assert maps.classes == CLASSES
    assert maps.palette == ((255, 0, 0), (0, 255, 0), (0, 0, 255))
    assert maps.prediction.dtype == np.uint8
    assert {values.dtype for values in maps.scores.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("of", ["maps", "batch"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("entropi", "no score 'entropi' (did you mean entropy?); the maps hold entropy, determ"),
        ("deterministic_enrgy", "(did you mean deterministic_energy?)"),
        ("predicton", "(did you mean prediction?)"),
        ("zzz", "there is no score 'zzz'; the maps hold entropy"),
        ("epistmic", "(did you mean epistemic?)"),
        ("rba", 'not asked for; call the model with scores=("entropy", "deterministic-energy", "'),
    ],
)
def test_a_score_that_is_not_there_says_which_are(
    of: str, name: str, said: str, request: pytest.FixtureRequest
) -> None:
    answer: Any = request.getfixturevalue(of)
    with pytest.raises(AttributeError) as caught:
        getattr(answer, name)
    assert said in str(caught.value)


def test_an_entry_that_is_not_there_is_an_input_error(maps: ImageMaps, batch: BatchMaps) -> None:
    for answer in (maps, batch):
        with pytest.raises(InputError, match="did you mean entropy"):
            answer["entropi"]
        with pytest.raises(InputError, match=r'scores=\("entropy", .*, "deterministic-msp"\)'):
            answer["deterministic-msp"]
    with pytest.raises(InputError, match="these are the maps of one image"):
        maps[0]  # type: ignore[index]


def test_names_of_python_are_plain_attribute_errors(maps: ImageMaps) -> None:
    with pytest.raises(AttributeError, match="'ImageMaps' object has no attribute '_private'"):
        _ = maps._private


def test_a_score_of_another_package_is_an_entry() -> None:
    SCORES.register("margin", MARGIN)
    try:
        maps = small_model()(IMAGE, draws=4, scores=("margin", "entropy"))
    finally:
        SCORES._entries.pop("margin")
    assert maps["margin"].shape == maps.margin.shape == (32, 48)


@pytest.mark.parametrize("of", ["maps", "batch"])
def test_pickles_and_copies_hold_the_same_maps(of: str, request: pytest.FixtureRequest) -> None:
    answer: Any = request.getfixturevalue(of)
    for other in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer), copy.copy(answer)):
        assert type(other) is type(answer)
        assert np.array_equal(other.entropy, answer.entropy)
        assert np.array_equal(other.image, answer.image)
        assert repr(other) == repr(answer)
        assert other.origin == answer.origin


def test_repr_names_shapes_ranges_and_units() -> None:
    maps = made(
        {"entropy": [[0, 0.25, 0.5]], "deterministic-energy": [[-12.5, -3, 1000]]}, classes=CLASSES
    )
    assert repr(maps).splitlines() == [
        "ImageMaps: prediction [1, 3] of 3 classes",
        "  entropy               [1, 3] 0 to 0.5 (share of ln C)",
        "  deterministic-energy  [1, 3] -12.5 to 1e+03 (-T log-sum-exp of the logits / T)",
    ]
    assert repr(BatchMaps([maps, maps])).splitlines()[:2] == [
        "BatchMaps of 2 images: prediction [2, 1, 3] of 3 classes",
        "  entropy               0 to 0.5 (share of ln C)",
    ]
    others = BatchMaps([maps, made({"entropy": [[1]], "deterministic-energy": [[0]]})])
    assert repr(others).startswith("BatchMaps of 2 images: prediction 2 sizes of 3 classes\n")


# Batches.


def test_a_batch_is_a_sequence_of_maps_with_stacked_fields(batch: BatchMaps) -> None:
    assert len(batch) == 2
    assert batch.prediction.shape == batch.entropy.shape == (2, 32, 48)
    assert batch.image.shape == (2, 32, 48, 3)
    assert np.array_equal(batch[-1].entropy, batch.entropy[1])
    for image, maps in zip((IMAGE, IMAGE[::-1]), batch, strict=True):
        assert np.array_equal(maps.image, image)
    assert np.array_equal(batch.image, [IMAGE, IMAGE[::-1]])
    assert isinstance(batch[:1], BatchMaps)
    assert len(batch[1:]) == 1
    with pytest.raises(IndexError):
        batch[2]
    with pytest.raises(InputError, match="a batch of no maps"):
        batch[:0]
    with pytest.raises(InputError, match=r"maps 1 of the batch hold msp, and the first hold ent"):
        BatchMaps([batch[0], made({"msp": HALF})])


def test_images_of_8_bits_and_floats_are_stacked_as_floats(model: segunc.Model) -> None:
    exact = np.full((32, 48, 3), 0.3, np.float32)
    stacked = model([IMAGE, exact], draws=2).image
    assert stacked.dtype == np.float32
    assert np.array_equal(stacked[0], (IMAGE / 255).astype(np.float32))
    assert np.array_equal(stacked[1], exact)


# Types.

TYPED = """
import numpy as np
import segunc

def check(model: segunc.Model, image: np.ndarray) -> None:
    maps = model(image)
    reveal_type(maps)
    reveal_type(maps.entropy)
    reveal_type(model([image]))
    reveal_type(model([image])[0].deterministic_energy)
    for each in model.maps([image]):
        reveal_type(each)
    maps.entropi
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_fields_and_finds_a_typo(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "snippet.py"]
    command += ["--allow-any-generics", "--follow-imports", "silent", "--ignore-missing-imports"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines()]
    revealed = [line for line in lines if line.startswith("note: Revealed")]
    dtype = "numpy.dtype[numpy.floating[numpy._typing._nbit_base._32Bit]]"
    array = f'"numpy.ndarray[tuple[Any, ...], {dtype}]"'
    maps = "segunc.posteriors.image_maps"
    assert [line.removeprefix("note: Revealed type is ") for line in revealed] == [
        f'"{maps}.ImageMaps"',
        array,
        f'"{maps}.BatchMaps"',
        array,
        f'"{maps}.ImageMaps"',
    ], done.stdout
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 1, done.stdout
    assert '"ImageMaps" has no attribute "entropi"' in errors[0]


# Figures.


def text_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def rendered(figure: Figure) -> np.ndarray:
    """Return the pixels of a figure."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]


def test_a_figure_shows_image_prediction_and_scores(maps: ImageMaps) -> None:
    figure = maps.plot()
    words = text_of(figure)
    titles = ["Image  [32 x 48]", "Prediction", "Entropy", "Energy of the base  [deterministic-ene"]
    assert [any(text.startswith(title) for text in words) for title in titles] == [True] * 4
    assert "0 = certain, 1 = all classes equally likely" in words
    assert any("range of this image" in text for text in words)
    shares = np.bincount(maps.prediction.ravel(), minlength=3) / maps.prediction.size
    for name, share in zip(CLASSES, shares, strict=True):
        if share >= 0.01:
            assert f"{name} {share:.0%}" in words


def test_panels_hold_the_pixels(maps: ImageMaps) -> None:
    image, prediction, entropy, bar, *_ = [axes.images[0] for axes in maps.plot().axes]
    assert np.array_equal(image.get_array(), IMAGE)
    assert np.array_equal(prediction.get_array(), np.eye(3, dtype=np.uint8)[maps.prediction] * 255)
    assert np.allclose(entropy.get_array(), maps.entropy, atol=1e-6)
    assert np.allclose(entropy.get_cmap()(np.arange(256))[:, :3], colour_table() / 255)
    assert bar.get_array().shape == (1, 256)


def test_a_figure_leaves_pyplot_and_the_settings_of_its_user_alone(maps: ImageMaps) -> None:
    before = dict(rcParams), pyplot.get_backend(), pyplot.get_fignums()
    maps.plot()
    maps._repr_png_()
    assert (dict(rcParams), pyplot.get_backend(), pyplot.get_fignums()) == before


def test_a_figure_has_the_same_look_whatever_its_user_set(maps: ImageMaps) -> None:
    plain = rendered(maps.plot())
    with pyplot.style.context(["dark_background", {"font.size": 30}]):
        figure = maps.plot()
    assert np.array_equal(rendered(figure), plain)


def test_a_notebook_shows_a_png(maps: ImageMaps, tmp_path: Path) -> None:
    figure: Any = maps.plot()
    for data in (maps._repr_png_(), figure._repr_png_()):
        (tmp_path / "maps.png").write_bytes(data)
        with Image.open(tmp_path / "maps.png") as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 200


def test_asked_scores_and_ranges_are_drawn(maps: ImageMaps) -> None:
    words = text_of(maps.plot("deterministic-energy", ranges={"deterministic-energy": (-2, 0)}))
    assert {"≤ -2", "-1", "≥ 0"} <= set(words)
    assert "Entropy" not in words
    assert not any("range of" in text for text in words)
    for scores, ranges, said in (
        ("entropi", None, "did you mean entropy"),
        (("msp",), None, "was not asked for"),
        (None, {"rba": (0, 1)}, "was not asked for"),
        (None, {"entropy": (1, 0)}, "does not rise"),
        (None, {"entropy": ("0", "1")}, "is not two numbers"),
        (None, {"entropy": 1}, "the range 1 of 'entropy' is not two numbers"),
    ):
        with pytest.raises(InputError, match=said):
            maps.plot(scores, ranges=ranges)


def test_bars_say_ends_and_meaning() -> None:
    maps = made(
        {"anomaly": [[0, 9]], "logit-variance": [[0, 2]], "epistemic": [[0, 0.3]]},
        origin=Origin(measured_to={"anomaly": 3}),
    )
    anomaly = bar_of("anomaly", [maps], None)
    assert anomaly.shown.ticks == ("0", "3", ">= 6")
    assert anomaly.shown.measured_to == 3
    assert anomaly.words.endswith("hatched: beyond what was measured")
    low, _, high = bar_of("logit-variance", [maps], None).shown.ticks
    assert (low, high) == ("0", ">= 2")
    assert bar_of("epistemic", [maps], None).shown.ticks == ("0", "0.05", ">= 0.1")


def test_images_of_a_batch_share_their_colours() -> None:
    dark = made({"deterministic-energy": [[-9.0, -8.0]]})
    light = made({"deterministic-energy": [[-3.0, -2.0]]})
    shown = bar_of("deterministic-energy", [dark, light], None).shown
    assert (shown.low, shown.high) == (-9, -2)


def test_a_figure_shows_all_of_few_scores_and_the_usual_of_many() -> None:
    few = made(dict.fromkeys(("msp", "rba", "knn"), HALF))
    assert usual_scores(few) == ["msp", "rba", "knn"]
    many = dict.fromkeys(score.name for score in _TABLE)
    assert usual_scores(made(dict.fromkeys(many, HALF))) == ["anomaly", "entropy", "epistemic"]
    alone = made(
        dict.fromkeys(("entropy", "aleatoric", "epistemic"), HALF), origin=Origin({"draws": 1})
    )
    assert usual_scores(alone) == ["entropy"]


def test_a_legend_names_the_classes_that_occur_by_their_area() -> None:
    prediction = np.array([[2, 2, 2, 7]], np.uint8)
    names = tuple(f"class {number}" for number in range(7))
    legend = legend_of(made({"entropy": [[0, 0, 0, 0]]}, prediction, classes=names))
    assert [swatch.words for swatch in legend] == ["class 2 75%", "class 7 25%"]
    assert legend[0].colour != legend[1].colour


def test_a_legend_of_many_classes_counts_the_rest() -> None:
    prediction = np.repeat(np.arange(100, dtype=np.uint8), 2)[None]
    legend = legend_of(made({"entropy": np.zeros((1, 200))}, prediction))
    assert len(legend) == MOST_CLASSES + 1
    assert legend[-1].words == "76 other classes 76%"


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1, 2, 5, 20])
def test_a_panel_has_the_shape_of_its_image(ratio: float) -> None:
    width, height = panel_size(ratio)
    assert width / height == pytest.approx(ratio)
    assert max(width, height) <= 5.3


@pytest.mark.parametrize("size", [(30, 100), (60, 60), (120, 40)])
@pytest.mark.parametrize("count", [1, 6])
def test_nothing_of_a_figure_overlaps_or_leaves_it(size: tuple[int, int], count: int) -> None:
    """Of a wide, a square and a tall image, with 19 classes of long names."""
    names = LONG_NAMES[:count]
    values = np.random.default_rng(0).random(size)
    prediction = (np.arange(values.size) % 19).reshape(size).astype(np.uint8)
    classes = tuple(f"traffic light {number}" for number in range(19))
    image = np.zeros((*size, 3), np.uint8)
    maps = made(dict.fromkeys(names, values), prediction, image=image, classes=classes)
    figure = maps.plot()
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.texts]
    boxes += [axes.get_window_extent() for axes in figure.axes]
    width, height = figure.get_size_inches() * figure.dpi
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1
    for number, box in enumerate(boxes):
        for other in boxes[:number]:
            across = min(box.x1, other.x1) - max(box.x0, other.x0)
            along = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(across, along) <= 1, (box, other)


def test_a_batch_is_drawn_below_each_other(batch: BatchMaps) -> None:
    words = text_of(batch.plot(("entropy",)))
    assert [text for text in words if text.startswith("Image")] == [
        "Image 0  [32 x 48]",
        "Image 1  [32 x 48]",
    ]
    with pytest.raises(InputError, match=r"maps\[:16\]\.plot"):
        BatchMaps([batch[0]] * 17).plot()


def test_maps_without_an_image_are_drawn_without_it() -> None:
    words = text_of(made({"entropy": [[0.5, 0.2]]}).plot())
    assert words[0] == "Prediction"


def test_without_matplotlib_a_sentence_says_so(
    maps: ImageMaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "segunc.posteriors.map_figure")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="Hint: pip install matplotlib"):
        maps.plot()


def test_maps_of_a_model_on_another_device_come_to_the_host(model: segunc.Model) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_gpu = copy.deepcopy(model)
    on_gpu.place(torch.device("cuda"))
    maps = on_gpu(torch.from_numpy(IMAGE).permute(2, 0, 1).cuda(), draws=4)
    assert isinstance(maps.entropy, np.ndarray)
    np.testing.assert_allclose(maps.entropy, model(IMAGE, draws=4).entropy, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["ImageMaps", "ImageMaps.plot", "ImageMaps.save", "BatchMaps", "Model.maps"]
)
def test_the_example_of_a_class_runs(name: str, tmp_path: Path) -> None:
    home, _, method = name.partition(".")
    documented = getattr(segunc, home)
    documented = getattr(documented, method) if method else documented
    model = small_model()
    names = {
        "model": model,
        "image": IMAGE,
        "folder": tmp_path,
        "maps": model(IMAGE, draws=4, scores=("entropy", "epistemic")),
    }
    (example,) = doctest.DocTestFinder(recurse=False).find(documented, name, globs=names)
    assert example.examples
    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=printed.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(printed)


def test_a_figure_is_saved_on_its_own_ground_in_a_dark_style(
    maps: ImageMaps, tmp_path: Path
) -> None:
    figure = maps.plot("entropy")
    with style.context("dark_background"):
        figure.savefig(tmp_path / "maps.png")
        shown = maps._repr_png_()
    for data in ((tmp_path / "maps.png").read_bytes(), shown):
        assert Image.open(io.BytesIO(data)).convert("RGB").getpixel((1, 1)) == (255, 255, 255)


def test_a_score_of_another_package_has_the_range_of_its_finite_values() -> None:
    values = np.arange(101, dtype=np.float32).reshape(1, 101).repeat(4, 0)
    values[0] = np.inf  # percentiles 1 and 99 of the rest are 1 and 99
    maps = ImageMaps(np.zeros((4, 101), np.uint8), {"their-score": values})
    words = text_of(maps.plot())
    assert {"≤ 1", "50", "≥ 99"} <= set(words)
    assert "range of this image" in words


def test_names_of_scores_from_a_generator_are_those_of_each_image(model: segunc.Model) -> None:
    names: Any = (name for name in ("entropy", "msp"))
    batch = model([IMAGE, IMAGE], draws=2, scores=names)
    assert list(batch[1].scores) == ["entropy", "msp"]
