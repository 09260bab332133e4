"""Verbs where something lacks or does not fit, called in the process of the test."""

import json
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import segunc
from segunc.colours import DisplayRange
from segunc.core.errors import InputError, PartialFailure
from segunc.core.removal import Ledger
from segunc.frames.source import Frame
from segunc.gallery.drawing import Legend, draw_overlay
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import open_maps
from segunc.maps.pipeline import Summary
from segunc.maps.store import MapsWriter
from segunc.options import PredictOptions
from segunc.posteriors.model import posterior_method
from segunc.sampling.sampler import SamplerReport
from segunc.verbs import demo
from segunc.verbs.doctor import _check_report
from segunc.verbs.execution import InputResult, choices_record, overlay_drawer, writer_threads
from segunc.verbs.predict import PredictResult
from segunc.verbs.training import _recorded_sha256
from tests.maps.fakes import manifest


def maps_of(entropy: float) -> dict[str, np.ndarray]:
    """Return the maps of a frame of one value."""
    values = np.full((4, 6), entropy, np.float32)
    return {
        "prediction": np.zeros((4, 6), np.uint8),
        "entropy": values,
        "epistemic": values / 10,
        "deterministic-max-logit": -values,
    }


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """Maps of two frames whose entropies are 0.25 and 0.75."""
    with MapsWriter(tmp_path / "maps", manifest()) as writer:
        writer.write("a", maps_of(0.25))
        writer.write("b", maps_of(0.75))
    return tmp_path / "maps"


def verdicts_on(maps: Path, folder: Path, time: str = "2026-01-01T00:00:00Z", **kinds: str) -> Path:
    """Write a file of verdicts on frames, as a page exports it."""
    verdicts = [
        {"frame": frame, "verdict": kind, "note": "", "time": time} for frame, kind in kinds.items()
    ]
    content = {
        "format": "segunc-verdicts",
        "version": 2,
        "run": run_id(open_maps(maps)),
        "verdicts": verdicts,
    }
    path = folder / "verdicts.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_review_without_a_folder_for_its_page_is_refused(maps: Path) -> None:
    with pytest.raises(InputError, match="the page has no place"):
        segunc.review(maps)


def test_imported_verdicts_are_counted(maps: Path, tmp_path: Path) -> None:
    result = segunc.review(maps, verdicts=[verdicts_on(maps, tmp_path, a="missed")])
    lines = result.verdicts.splitlines()
    assert "| missed | 1 | 50.0% | 0 |" in lines
    assert "| no verdict | 1 | 50.0% | 0 |" in lines


def test_imported_verdicts_of_one_reviewer_have_no_agreement(maps: Path, tmp_path: Path) -> None:
    result = segunc.review(maps, verdicts=[verdicts_on(maps, tmp_path, a="missed")])
    assert "kappa" not in result.verdicts


def test_imported_verdicts_of_the_future_are_noted(maps: Path, tmp_path: Path) -> None:
    file = verdicts_on(maps, tmp_path, "9999-01-01T00:00:00Z", a="missed")
    (note,) = segunc.review(maps, verdicts=[file]).notes
    assert note.startswith("1 verdict is dated after now, first 9999-01-01T00:00:00Z on frame a")


def test_verdicts_are_shown_by_a_page_in_a_new_folder(maps: Path, tmp_path: Path) -> None:
    file = verdicts_on(maps, tmp_path, a="missed")
    result = segunc.review(maps, verdicts=[file], out=tmp_path / "page")
    assert result.page == (tmp_path / "page" / "index.html").resolve()
    assert r"\"verdict\":\"missed\"" in (tmp_path / "page" / "data" / "verdicts.js").read_text()


def test_verdicts_are_imported_into_their_page(maps: Path, tmp_path: Path) -> None:
    segunc.review(maps, out=tmp_path / "page")
    file = verdicts_on(maps, tmp_path, a="missed")
    result = segunc.review(maps, verdicts=[file], out=tmp_path / "page")
    assert result.path is not None
    assert r"\"verdict\":\"missed\"" in result.path.read_text(encoding="utf-8")
    assert not [note for note in result.notes if "keeps the program" in note]


def test_a_page_that_keeps_an_earlier_program_is_said(maps: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    segunc.review(maps, out=page)
    (page / "assets" / "alarms.js").write_text("// of an earlier version")
    record = json.loads((page / "review.json").read_text())
    (page / "review.json").write_text(json.dumps(record | {"tool": "segunc 0.1.0"}))
    file = verdicts_on(maps, tmp_path, a="missed")
    result = segunc.review(maps, verdicts=[file], out=page)
    assert r"\"verdict\":\"missed\"" in (page / "data" / "verdicts.js").read_text()
    (note,) = [note for note in result.notes if "keeps the program" in note]
    assert "keeps the program of segunc 0.1.0" in note
    assert "it keeps the verdicts" in note


def test_options_of_the_page_are_refused_where_verdicts_are_imported_into_it(
    maps: Path, tmp_path: Path
) -> None:
    segunc.review(maps, out=tmp_path / "page")
    file = verdicts_on(maps, tmp_path, a="missed")
    with pytest.raises(InputError, match="so `limit` and `flag` would change nothing"):
        segunc.review(maps, verdicts=[file], out=tmp_path / "page", flag=["entropy=0.6"], limit=1)


def test_a_page_that_is_made_again_keeps_its_verdicts(maps: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    file = verdicts_on(maps, tmp_path, a="missed")
    segunc.review(maps, verdicts=[file], out=page)
    before = (page / "data" / "verdicts.js").read_text()
    result = segunc.review(maps, out=page, flag=["entropy=0.6"])
    assert (page / "data" / "verdicts.js").read_text() == before
    assert "The page keeps 1 verdict that was imported into the earlier one." in result.notes


def test_verdicts_on_another_run_are_left_out_of_a_new_page_and_said(
    maps: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page"
    segunc.review(maps, verdicts=[verdicts_on(maps, tmp_path, a="missed")], out=page)
    record = json.loads((page / "review.json").read_text())
    Ledger(page).write("review.json", json.dumps(record | {"run": "0" * 16}).encode())
    (note,) = [note for note in segunc.review(maps, out=page).notes if "verdict" in note]
    assert note.startswith("The page leaves out 1 verdict that was imported")
    assert "missed" not in (page / "data" / "verdicts.js").read_text()


def test_maps_without_a_finished_frame_have_no_summary(tmp_path: Path) -> None:
    MapsWriter(tmp_path / "maps", manifest()).close()
    with pytest.raises(InputError, match="holds no finished frame"):
        segunc.summary(tmp_path / "maps")


def test_a_summary_names_a_frame_that_has_no_maps(tmp_path: Path) -> None:
    with MapsWriter(tmp_path / "maps", manifest()) as writer:
        writer.write("a", maps_of(0.5))
        writer.failed["b"] = "no image"
    failure = segunc.summary(tmp_path / "maps").failure
    assert failure.startswith("1 frame has no maps and is in no list, first b of ")
    assert "(no image)" in failure


def test_a_folder_with_another_page_gets_no_report(maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / "index.html").write_text("mine", encoding="utf-8")
    (out / "report.json").write_text('{"kind": "other"}', encoding="utf-8")
    with pytest.raises(InputError, match="report holds another page"):
        segunc.report(model=tmp_path / "model", out=out)
    assert (out / "index.html").read_text(encoding="utf-8") == "mine"


def test_a_source_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="source 'torchvision' is not SOURCE:NAME"):
        segunc.import_network(source="torchvision", out=tmp_path / "imported")


def test_an_evaluation_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="says what to evaluate"):
        segunc.evaluate()


def test_verdicts_without_maps_are_not_evaluated(maps: Path, tmp_path: Path) -> None:
    file = verdicts_on(maps, tmp_path, a="missed")
    with pytest.raises(InputError, match="needs the maps that were reviewed"):
        segunc.evaluate(verdicts=[file])


def test_verdicts_and_groups_do_not_go_together(maps: Path, tmp_path: Path) -> None:
    file = verdicts_on(maps, tmp_path, a="missed")
    with pytest.raises(InputError, match="do not go together: verdicts are evaluated alone"):
        segunc.evaluate(maps=maps, verdicts=[file], groups="^a")


def test_an_evaluation_notes_verdicts_of_the_future(maps: Path, tmp_path: Path) -> None:
    file = verdicts_on(maps, tmp_path, "9999-01-01T00:00:00Z", a="missed", b="missed")
    notes = segunc.evaluate(maps=maps, verdicts=[file]).notes
    assert any(note.startswith("2 verdicts are dated after now") for note in notes)


def input_result(label: str, **failed: str) -> InputResult:
    return InputResult(Path("maps") / label, label, Summary(finished=2, failed=failed), how="")


def test_failed_frames_of_several_inputs_stand_behind_their_labels() -> None:
    inputs = (input_result("front", a="no image"), input_result("rear", a="too small"))
    result = PredictResult(Path("maps"), inputs)
    assert result.failed == {"front/a": "no image", "rear/a": "too small"}


def test_failed_frames_of_one_input_have_their_own_names() -> None:
    result = PredictResult(Path("maps"), (input_result("", a="no image"),))
    assert result.failed == {"a": "no image"}


@pytest.mark.parametrize(
    ("cores", "threads"),
    [(2, 2), (6, 4), (64, 8), (None, 2)],
)
def test_writers_beside_a_gpu_leave_two_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, threads: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert writer_threads(torch.device("cuda")) == threads


def test_a_run_records_its_own_noise_scale_and_that_it_is_compiled() -> None:
    options = PredictOptions(
        model=Path("model"), input=("images",), out=Path("maps"), alpha=0.5, compile=True
    )
    assert choices_record(options) == {"alpha": 0.5, "compiled": True}


def test_an_overlay_of_a_score_without_a_range_is_refused() -> None:
    with pytest.raises(InputError, match="deterministic-max-logit, which has no fixed range"):
        overlay_drawer("deterministic-max-logit", manifest(), {})


def test_an_overlay_of_a_prediction_hatches_what_is_beyond_the_measured_values() -> None:
    described = {"maps": {"anomaly": {"unit": "", "measured_to": 4.8}}, "run": {}}
    plain = {"maps": {"anomaly": {"unit": "", "measured_to": 6.5}}, "run": {}}
    pictures = []
    for content in (described, plain):
        draw = overlay_drawer("anomaly", content, {})
        frame = Frame("1", 0, np.zeros((64, 640, 3), np.uint8))
        zeros = np.zeros((64, 640))
        pictures.append(draw(frame, {"anomaly": zeros, "prediction": zeros}))
    ranges = [
        DisplayRange(0, 6, open_above=True, measured_to=4.8),
        DisplayRange(0, 6, open_above=True),
    ]
    for picture, shown in zip(pictures, ranges, strict=True):
        expected = draw_overlay(
            np.zeros((64, 640, 3), np.uint8),
            np.zeros((64, 640)),
            Legend("anomaly", "", shown),
            caption="Frame 1",
        )
        assert np.array_equal(picture, expected)
    assert not np.array_equal(*pictures)


@pytest.mark.parametrize(
    ("batched", "status", "end"),
    [(True, "ok", "of the largest logit"), (False, "warn", "draws run one at a time")],
)
def test_doctor_says_whether_draws_run_as_a_batch(batched: bool, status: str, end: str) -> None:
    (finding,) = _check_report(SamplerReport(self_check=0.25, batched=batched))
    assert finding.status == status
    assert finding.text.startswith("largest difference 2.5e-01 of the largest logit")
    assert finding.text.endswith(end)


def test_doctor_names_a_layer_that_no_pass_reaches() -> None:
    (finding,) = _check_report(SamplerReport(unreached=("aux.norm", "aux.last")))
    assert finding.status == "warn"
    assert finding.text == "2 are not, e.g. aux.norm: their noise does nothing"


def metrics(folder: Path, auroc: float | None) -> Path:
    scores = {name: {"pooled": {"auroc": auroc}} for name in demo.SHOWN}
    path = folder / "metrics.json"
    path.write_text(json.dumps({"scores": scores}), encoding="utf-8")
    return path


def test_a_demo_without_an_anomaly_score_fails(tmp_path: Path) -> None:
    with pytest.raises(PartialFailure, match="the demo has no anomaly score"):
        demo._anomaly_auroc(metrics(tmp_path, None))


def test_a_demo_shows_the_pooled_auroc(tmp_path: Path) -> None:
    assert demo._anomaly_auroc(metrics(tmp_path, 0.75)) == dict.fromkeys(demo.SHOWN, 0.75)


def test_a_step_of_the_demo_that_fails_ends_it() -> None:
    def predict(options: object) -> PredictResult:
        return PredictResult(Path("maps"), (), failure="1 of 2 frames failed")

    with pytest.raises(PartialFailure, match="maps of a drive: 1 of 2 frames failed"):
        demo._call("maps of a drive", predict, None)


def write_pairs(root: Path, *labels: Any) -> Path:
    """Write a data set of grey images and these labels."""
    for number, values in enumerate(labels):
        for folder, picture in (("images", np.full((8, 12), 90)), ("labels", np.array(values))):
            path = root / folder / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(path), picture.astype(np.uint8))
    return root


def halves(left: int, right: int, width: int = 12) -> np.ndarray:
    """A label ``[8, width]`` of two values."""
    values = np.full((8, width), left)
    values[:, width // 2 :] = right
    return values


def init(tmp_path: Path, *labels: Any, **options: Any) -> Any:
    root = write_pairs(tmp_path / "data", *labels)
    return segunc.init(root, out=tmp_path / "mine.yaml", **options)


def test_labels_of_one_value_are_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the labels hold 3 alone: nothing to learn"):
        init(tmp_path, halves(3, 3), halves(3, 3))


def test_labels_of_0_and_2_are_masks_of_road_anomaly(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hold 0 and 2 alone: masks.*--dataset road-anomaly"):
        init(tmp_path, halves(0, 2), halves(0, 2))


def test_a_void_value_that_no_label_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"void.* 7 is not a value of the labels.*hold 0, 1, 2"):
        init(tmp_path, halves(0, 1), halves(1, 2), void=["7"])


def test_two_values_of_which_one_is_void_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fewer than two classes are left to learn"):
        init(tmp_path, halves(0, 1), halves(1, 2), void=["0", "1"])


def test_255_beside_two_other_values_is_assumed_to_be_void(tmp_path: Path) -> None:
    result = init(tmp_path, halves(0, 1), halves(2, 255))
    assert any("assumes that 255 is void and ignores it" in note for note in result.notes)


def test_values_that_a_label_map_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 value .* not in label map camvid: 77"):
        init(tmp_path, halves(0, 1), halves(1, 77), label_map="camvid")


def test_an_image_of_another_size_than_its_label_is_refused(tmp_path: Path) -> None:
    labels = (halves(0, 1, width=10), halves(1, 2, width=10))
    with pytest.raises(InputError, match="is 8x12, its label 8x10 pixels"):
        init(tmp_path, *labels)


def test_a_picture_of_an_odd_number_of_pairs_is_filled_with_paper(tmp_path: Path) -> None:
    labels = (halves(0, 1), halves(1, 2), halves(2, 0))
    picture = cv2.imread(str(init(tmp_path, *labels).picture))
    assert picture is not None
    # Above the legend stand two rows of two cells, of which the last is empty. A cell holds two
    # pictures beside each other, each half as wide again as high.
    cell_width = picture.shape[1] // 2
    cell_height = cell_width // 3
    last_cell = picture[cell_height + 20 : cell_height + 40, cell_width + 20 :]
    assert (last_cell > 250).all()


def test_frames_of_different_sizes_are_seen_at_their_own(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "data", halves(0, 1), halves(1, 2))
    assert cv2.imwrite(str(root / "images" / "001.png"), np.zeros((16, 24, 3), np.uint8))
    label = halves(1, 2, width=24).repeat(2, 0).astype(np.uint8)
    assert cv2.imwrite(str(root / "labels" / "001.png"), label)
    result = segunc.init(root, out=tmp_path / "mine.yaml")
    assert "# Frames differ in size: each is seen at its own." in result.config.read_text()


def test_labels_in_colours_give_classes_of_these_colours(tmp_path: Path) -> None:
    red_and_blue = np.zeros((8, 12, 3))
    red_and_blue[:, :6, 2] = 200  # OpenCV writes blue, green, red
    red_and_blue[:, 6:, 0] = 200
    red_and_green = red_and_blue[:, :, [1, 2, 0]]
    result = init(tmp_path, red_and_blue, red_and_green)
    lines = result.label_map.read_text().splitlines()
    assert [line.split(",")[3:] for line in lines[1:]] == [
        ["0", "0", "200"],
        ["0", "200", "0"],
        ["200", "0", "0"],
    ]


def test_a_folder_without_a_posterior_has_no_method(tmp_path: Path) -> None:
    assert posterior_method(tmp_path) is None


def test_the_method_of_a_folder_is_that_of_its_posterior(tmp_path: Path) -> None:
    (tmp_path / "posterior.json").write_text('{"method": "abnn"}', encoding="utf-8")
    assert posterior_method(tmp_path) == "abnn"


def test_a_folder_without_a_network_records_no_hash(tmp_path: Path) -> None:
    assert _recorded_sha256(tmp_path) == ""


def test_a_configuration_without_data_is_refused(maps: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("data: camvid\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.yaml has no section data"):
        segunc.evaluate(maps=maps, config=config)
