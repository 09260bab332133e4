"""Files for SegmentMeIfYouCan and Fishyscapes: what they hold, and what the benchmarks' own code
makes of them.

The last two tests run that code. They need clones of road-anomaly-benchmark and of fishyscapes in
the folder that SEGUNC_BENCHMARKS names, and the packages that these import.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.exporting.benchmarks import RECORD, write_benchmark
from segunc.maps.encoding import decode_unit
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.conftest import change_record
from tests.evaluation.runs import Run, make_frame
from tests.maps.foreign import write_map
from tests.verbs.processes import refuse, succeed

# Train ids 0, 13, 10 and 8 of Cityscapes.
CLASSES = ("road", "car", "sky", "vegetation")
SCORES = ("entropy", "deterministic-energy")
RUN = {"draws": 5}
NAMES = ("0000_abc", "0001_def", "0002_ghi")


def write_maps(
    folder: Path,
    frames: dict[str, Run],
    classes: tuple[str, ...] = CLASSES,
    run: Mapping[str, Any] = RUN,
) -> Path:
    palette = tuple((40 * number, 20, 90) for number in range(len(classes)))
    manifest = build_manifest(run, SCORES, device="cpu", classes=classes, palette=palette)
    with MapsWriter(folder, manifest) as writer:
        for name, frame in frames.items():
            maps = {score: frame.stored[score] for score in SCORES}
            writer.write(name, {"prediction": frame.prediction, **maps})
    return folder


@pytest.fixture(scope="module")
def frames() -> dict[str, Run]:
    return {name: make_frame(number) for number, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def maps(frames: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_maps(tmp_path_factory.mktemp("benchmarks") / "maps", frames)


def test_files_of_smiyc_lie_where_its_code_reads_them(maps, frames, tmp_path):
    out = tmp_path / "outputs"
    words = "export --to smiyc --score deterministic-energy --method net --track AnomalyTrack-all"
    succeed(words, "--maps", maps, "--out", out)
    for name, frame in frames.items():
        path = out / "anomaly_p" / "net" / "AnomalyTrack-all" / f"{name}.hdf5"
        with h5py.File(path) as file:
            values = file["value"][:]
        assert values.dtype == np.float16
        np.testing.assert_array_equal(values, frame.stored["deterministic-energy"])


def test_codes_become_the_values_of_the_score(maps, frames, tmp_path):
    write_benchmark(maps, tmp_path / "out", "smiyc", score="entropy")
    path = tmp_path / "out/anomaly_p/segunc/AnomalyTrack-all/0001_def.hdf5"
    expected = decode_unit(frames["0001_def"].stored["entropy"]).astype(np.float16)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["value"][:], expected)


def test_files_of_fishyscapes_have_the_number_of_their_image(maps, frames, tmp_path):
    written = write_benchmark(maps, tmp_path, "fishyscapes", score="entropy")
    assert written.notes == []
    files = sorted(path.name for path in tmp_path.glob("*.npy"))
    assert files == [
        f"{number:04d}_{kind}.npy" for number in range(3) for kind in ("anomaly", "segmentation")
    ]
    scores = np.load(tmp_path / "0002_anomaly.npy")
    segmentation = np.load(tmp_path / "0002_segmentation.npy")
    frame = frames["0002_ghi"]
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, decode_unit(frame.stored["entropy"]))
    train_ids = np.array([0, 13, 10, 8])
    np.testing.assert_array_equal(segmentation, train_ids[frame.prediction])


def test_the_files_of_fishyscapes_give_the_pooled_average_precision(maps, frames, tmp_path):
    write_benchmark(maps, tmp_path, "fishyscapes", score="entropy")
    truth = []
    scores = []
    for name, frame in frames.items():
        counted = frame.anomaly != 255
        truth.append(frame.anomaly[counted])
        scores.append(np.load(tmp_path / f"{name[:4]}_anomaly.npy")[counted])
    expected = average_precision_score(np.concatenate(truth), np.concatenate(scores))
    assert evaluated(maps, frames, "entropy")["pooled"]["aupr"] == pytest.approx(expected)


def evaluated(maps: Path, frames: dict[str, Run], score: str) -> dict[str, Any]:
    """Return our numbers of a score by the protocols of both benchmarks."""
    measures = Measures(protocols=("pooled", "smiyc"), by=())
    evaluator = Evaluator((score,), None, measures=measures)
    reader = MapsReader(maps)
    for name, frame in frames.items():
        evaluator.update(name, {score: reader.read_stored(name, score)}, anomaly=frame.anomaly)
    numbers: dict[str, Any] = evaluator.numbers()["scores"][score]
    return numbers


def test_the_same_command_writes_the_same_bytes(maps, tmp_path):
    write_benchmark(maps, tmp_path, "smiyc")
    files = sorted(tmp_path.rglob("*.hdf5"))
    before = [path.read_bytes() for path in files]
    files[0].unlink()
    write_benchmark(maps, tmp_path, "smiyc")
    assert [path.read_bytes() for path in files] == before


def test_classes_that_are_not_those_of_cityscapes_leave_the_segmentation_out(frames, tmp_path):
    own = write_maps(tmp_path / "maps", frames, classes=("lane", "car", "sky", "tree"))
    written = write_benchmark(own, tmp_path / "out", "fishyscapes")
    assert not list((tmp_path / "out").glob("*_segmentation.npy"))
    assert "no prediction of Cityscapes classes" in written.notes[0]


def test_a_frame_that_float16_cannot_hold_is_named_and_the_others_are_written(tmp_path):
    foreign = tmp_path / "maps"
    write_map(foreign / "mine" / "a.npy", np.full((4, 4), 1e6, np.float32))
    write_map(foreign / "mine" / "b.npy", np.full((4, 4), 0.5, np.float32))
    written = write_benchmark(foreign, tmp_path / "out", "smiyc")
    assert written.frames == ["b"]
    assert "1 frame has no file, first a" in written.failure
    assert "values beyond 65504, the largest float16" in written.failure


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--to smiyc --score knn", "the score 'knn' has no maps in"),
        ("--to smiyc --method ../up", "--method '../up' is no name of a folder"),
        ("--to smiyc --draws 4", "--to smiyc takes no --draws"),
        ("--to fishyscapes --track AnomalyTrack-all", "--to fishyscapes takes no --track"),
        ("--to onnx", "--to onnx takes no --maps"),
    ],
)
def test_bad_input_is_one_sentence(maps, tmp_path, words, message):
    error = refuse("export", words, "--maps", maps, "--out", tmp_path / "out")
    assert message in str(error)
    assert not (tmp_path / "out").exists()


def test_what_the_files_are_made_of_must_be_given(tmp_path):
    assert "made of maps" in str(refuse("export --to smiyc", "--out", tmp_path / "out"))
    assert "made of a model" in str(refuse("export --to pt2", "--out", tmp_path / "out"))


def test_a_folder_with_another_score_is_refused(maps, tmp_path):
    write_benchmark(maps, tmp_path, "smiyc", score="entropy")
    with pytest.raises(InputError, match="another score: entropy, not deterministic-energy"):
        write_benchmark(maps, tmp_path, "smiyc", score="deterministic-energy")
    assert json.loads((tmp_path / RECORD).read_text())["score"] == "entropy"


def test_a_folder_with_the_maps_of_another_model_is_refused(frames, tmp_path):
    """Maps were made anew in the same place, and a file of the first model could stay."""
    maps = tmp_path / "maps"
    out = tmp_path / "out"
    write_maps(maps, frames, run={"draws": 5, "base_sha256": "first"})
    write_benchmark(maps, out, "smiyc")
    shutil.rmtree(maps)
    write_maps(maps, frames, run={"draws": 5, "base_sha256": "second"})
    with pytest.raises(InputError, match="holds an export of another model"):
        write_benchmark(maps, out, "smiyc")


def test_a_record_without_a_model_is_that_of_an_earlier_version(maps, tmp_path):
    write_benchmark(maps, tmp_path, "smiyc")
    change_record(tmp_path / RECORD, without=["model"])
    written = write_benchmark(maps, tmp_path, "smiyc")
    assert len(written.frames) == len(NAMES)


def test_a_file_of_somebody_is_not_replaced(maps, tmp_path):
    (tmp_path / "0000_anomaly.npy").write_bytes(b"mine")
    written = write_benchmark(maps, tmp_path, "fishyscapes")
    assert "0000_anomaly.npy, which is no file of the run" in written.failure
    assert (tmp_path / "0000_anomaly.npy").read_bytes() == b"mine"


def test_two_frames_of_one_number_are_refused(frames, tmp_path):
    twice = {"a/0000_x": frames["0000_abc"], "b/0000_y": frames["0001_def"]}
    both = write_maps(tmp_path / "maps", twice)
    with pytest.raises(InputError, match="would both be '0000'"):
        write_benchmark(both, tmp_path / "out", "fishyscapes")


def test_a_frame_without_a_number_is_refused(frames, tmp_path):
    one = write_maps(tmp_path / "maps", {"street": frames["0000_abc"]})
    with pytest.raises(InputError, match="does not begin with a number"):
        write_benchmark(one, tmp_path / "out", "fishyscapes")


# The code of 2021 imports names that SciPy, NumPy, Matplotlib and IPython have moved since.
SHIMS = """
import sys, types
import matplotlib, matplotlib.cm, matplotlib.pyplot, numpy, scipy.ndimage
for name in ("morphology", "measurements"):
    sys.modules[f"scipy.ndimage.{name}"] = scipy.ndimage
display = types.ModuleType("IPython.display")
display.display_html = print
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython.display"] = display
if not hasattr(matplotlib.cm, "get_cmap"):
    matplotlib.cm.get_cmap = matplotlib.pyplot.get_cmap
if not hasattr(numpy, "trapz"):
    numpy.trapz = numpy.trapezoid
import json
"""
SMIYC_CODE = """
from road_anomaly_benchmark.evaluation import Evaluation
evaluation = Evaluation("net", "AnomalyTrack-all", threaded_saver=False)
pixels = evaluation.run_metric_single("PixBinaryClass")
print(json.dumps({
    "auprc": float(pixels.area_PRC),
    "fpr95": float(pixels.tpr95_fpr),
    "best_f1": float(pixels.best_f1),
}))
"""
FISHYSCAPES_CODE = """
import numpy as np
from PIL import Image
import eval as benchmark
labels = benchmark.list_img_from_dir("labels", "_labels.png")
scores = benchmark.list_img_from_dir("files", "_anomaly.npy")
result = benchmark.calculate_metrics_perpixAP(
    [np.asarray(Image.open(path)) for path in labels], [np.load(path) for path in scores]
)
print(json.dumps({name: float(result[name]) for name in ("auroc", "AP", "FPR@95%TPR")}))
"""


def run_benchmark(repository: str, code: str, folder: Path, **variables: str) -> dict[str, float]:
    """Run code of a benchmark, and return the numbers on its last line."""
    clones = os.environ.get("SEGUNC_BENCHMARKS")
    if not clones or not (Path(clones) / repository).is_dir():
        pytest.skip(f"SEGUNC_BENCHMARKS names no folder with a clone of {repository}")
    path = os.pathsep.join([str(Path(clones) / repository), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SHIMS + code],
        cwd=folder,
        env={**os.environ, **variables, "PYTHONPATH": path, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


@pytest.mark.parametrize("score", SCORES)
def test_the_code_of_segment_me_if_you_can_gives_our_numbers(tmp_path, score):
    # The data set of the track holds 110 images.
    frames = {f"validation{number:04d}": make_frame(number) for number in range(110)}
    maps = write_maps(tmp_path / "maps", frames)
    root = tmp_path / "dataset_AnomalyTrack"
    for name, frame in frames.items():
        write_map(root / "images" / f"{name}.jpg", np.zeros((*frame.anomaly.shape, 3), np.uint8))
        write_map(root / "labels_masks" / f"{name}_labels_semantic.png", frame.anomaly)
    write_benchmark(maps, tmp_path / "outputs", "smiyc", score=score, method="net")
    theirs = run_benchmark(
        "road-anomaly-benchmark",
        SMIYC_CODE,
        tmp_path,
        DIR_OUTPUTS=str(tmp_path / "outputs"),
        DIR_DATASETS=str(tmp_path),
    )
    ours = evaluated(maps, frames, score)["smiyc"]
    assert theirs["auprc"] == pytest.approx(ours["aupr"], abs=1e-12)
    assert theirs["fpr95"] == pytest.approx(ours["fpr95"], abs=1e-12)
    assert theirs["best_f1"] == pytest.approx(ours["best_f1"], abs=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_the_code_of_fishyscapes_gives_our_numbers(maps, frames, tmp_path, score):
    write_benchmark(maps, tmp_path / "files", "fishyscapes", score=score)
    for name, frame in frames.items():
        path = tmp_path / "labels" / f"{name[:4]}_labels.png"
        path.parent.mkdir(exist_ok=True)
        assert cv2.imwrite(str(path), frame.anomaly)
    theirs = run_benchmark("fishyscapes", FISHYSCAPES_CODE, tmp_path)
    ours = evaluated(maps, frames, score)["pooled"]
    assert theirs["AP"] == pytest.approx(ours["aupr"], abs=1e-12)
    assert theirs["auroc"] == pytest.approx(ours["auroc"], abs=1e-12)
    assert theirs["FPR@95%TPR"] == pytest.approx(ours["fpr95"], abs=1e-12)
