"""What another package adds goes through the verbs like ours. Without the package, what it made is
refused in one line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from segunc import NetworkDescription, build_network, load_model, load_network, save_network
from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS
from segunc.data.images import load_image
from segunc.data.labels import label_map
from segunc.evaluation.parts import PARTS
from segunc.maps.reader import MapsReader
from segunc.networks.model_folder import KINDS, network_sha256
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import ATTACHMENTS, copy_model, model_files
from segunc.sampling.sampler import network_input
from segunc.scores import EVIDENCE, SCORES
from tests.conftest import Job, change_record
from tests.maps.fakes import edit_manifest
from tests.outside import attachment, data_set, metric_part, network, posterior, score
from tests.training.overconfident import save_abnn
from tests.verbs.processes import refuse, succeed

TABLES: tuple[Any, ...] = (ATTACHMENTS, DATASETS, EVIDENCE, KINDS, METHODS, PARTS, SCORES)
FAST = "--draws 2 --precision float32 --device cpu --threads 1"
NAMES = "entropy,msp,margin,logit-spread"


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    """Register what the other packages add, and forget it after the tests of this file."""
    before = [(table, dict(table._entries), table._looked_outside) for table in TABLES]
    METHODS.register("uniform-noise", posterior.METHOD)
    METHODS.register("class-shares", attachment.METHOD)
    ATTACHMENTS.register("class_shares", attachment.ClassShares)
    EVIDENCE.register("class shares", attachment.EVIDENCE)
    SCORES.register("rarity", attachment.RARITY)
    SCORES.register("margin", score.MARGIN)
    SCORES.register("logit-spread", score.SPREAD)
    PARTS.register("labels", metric_part.parts)
    DATASETS.register("side-by-side", data_set.SIDE_BY_SIDE)
    KINDS.register("tiny", network.build)
    yield
    for table, entries, looked_outside in before:
        table._entries = entries
        table._looked_outside = looked_outside


def write_config(path: Path, data: Path, text: str = "") -> Path:
    """Write a configuration that takes the toy frames."""
    path.write_text(f"data: {{dataset: toy, root: {data}}}\n{text}\n")
    return path


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(InputError, match="a method 'abnn' already"):
        METHODS.register("abnn", METHODS["uniform-noise"])


# A posterior.


@pytest.fixture(scope="module")
def noisy(trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the posterior of the other package."""
    folder = tmp_path_factory.mktemp("posterior")
    config = write_config(
        folder / "config.yaml", trained.data, "uniform_noise: {width: 0.4, scope: decoder}"
    )
    words = ("--base", trained.base, "--config", config, "--out", folder / "model")
    succeed("finetune --method uniform-noise --device cpu", *words)
    return folder / "model"


def test_a_posterior_is_stored_with_its_settings(noisy: Path) -> None:
    model = load_model(noisy)
    assert model.posterior == posterior.UniformNoise(width=0.4, scope="decoder")
    assert model.record["provenance"]["settings"]["width"] == 0.4


def test_the_draws_of_a_posterior_differ(noisy: Path, trained: Job, tmp_path: Path) -> None:
    words = ("--model", noisy, "--input", trained.frames, "--out", tmp_path / "maps")
    succeed("predict --draws 4 --device cpu --maps entropy,epistemic", *words)
    text = (tmp_path / "maps" / "frames.jsonl").read_text()
    frames = [json.loads(line) for line in text.splitlines()]
    assert frames
    assert len(frames) == len(list((tmp_path / "maps" / "epistemic").rglob("*.png")))
    for frame in frames:
        assert frame["mean"]["epistemic"] > 0


def test_the_bounds_of_the_settings_hold(trained: Job, tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml", trained.data)
    words = ("--base", trained.base, "--config", config, "--out", tmp_path / "model")
    message = refuse(
        "finetune --method uniform-noise --device cpu", *words, "--uniform_noise.width 0"
    )
    assert "uniform_noise: width 0.0 is not a number above 0" in message


# What is fitted on a model.


def fit_shares(base: Path, data: Path, out: Path) -> None:
    config = write_config(out.with_suffix(".yaml"), data, "class_shares: {frames: 4}")
    words = ("--config", config, "--base", base, "--out", out)
    succeed("finetune --method class-shares --device cpu", *words)


@pytest.fixture(scope="module")
def shared(trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the attachment of the other package."""
    folder = tmp_path_factory.mktemp("attachment")
    abnn = save_abnn(trained.base, folder / "abnn")
    fit_shares(abnn, trained.data, folder / "model")
    return folder / "model"


def test_an_attachment_is_loaded_with_its_model(shared: Path) -> None:
    record = load_model(shared).attachments["class_shares"]
    assert isinstance(record, attachment.ClassShares)
    assert sum(record.shares) == pytest.approx(1, abs=1e-6)
    assert shared / "class_shares.json" in model_files(shared)


def test_the_evidence_of_an_attachment_reaches_a_score(
    shared: Path, trained: Job, tmp_path: Path
) -> None:
    model = load_model(shared)
    record = model.attachments["class_shares"]
    maps = tmp_path / "maps"
    words = ("--model", shared, "--input", trained.frames, "--out", maps)
    succeed("predict", FAST, "--scores rarity,entropy", *words)
    reader = MapsReader(maps)
    assert reader.manifest["run"]["class_shares_sha256"] == record.record()["class_shares_sha256"]
    assert reader.frames
    for name in reader.frames:
        image = network_input([load_image(trained.frames / f"{name}.png")], (64, 128))
        with torch.inference_mode():
            predicted = model.network(image).argmax(1)[0].numpy()
        expected = -np.log(np.float32(record.shares))[predicted]
        np.testing.assert_allclose(reader.read(name, "rarity"), expected, rtol=1e-3)


def test_a_score_over_an_attachment_is_evaluated(
    shared: Path, trained: Job, tmp_path: Path
) -> None:
    data = ("--dataset toy-anomaly --split anomaly --replicates 0", "--root", trained.data)
    words = ("--model", shared, *data, "--out", tmp_path / "metrics.json")
    succeed("evaluate", FAST, "--scores rarity,entropy", *words)
    result = json.loads((tmp_path / "metrics.json").read_text())
    assert 0 < result["scores"]["rarity"]["pooled"]["auroc"] < 1


def test_a_model_with_an_attachment_is_sound(shared: Path) -> None:
    succeed("doctor --draws 2 --size 64x128 --device cpu", "--model", shared)


def test_a_model_without_the_attachment_has_no_such_score(trained: Job, tmp_path: Path) -> None:
    words = ("--model", trained.base, "--input", trained.frames, "--out", tmp_path / "maps")
    message = refuse("predict", FAST, "--scores rarity,entropy", *words)
    assert "score rarity of a model without shares" in message
    assert "segunc finetune --method class-shares" in message


def test_a_sum_of_scores_takes_one_over_an_attachment(
    shared: Path, trained: Job, tmp_path: Path
) -> None:
    text = "anomaly: {parts: [deterministic-energy, rarity], draws: 2}"
    config = write_config(tmp_path / "config.yaml", trained.data, text)
    summed = tmp_path / "model"
    words = ("--base", shared, "--config", config, "--out", summed)
    succeed("finetune --method anomaly --device cpu", *words)
    attachments = load_model(summed).attachments
    # What is fitted on others is loaded after them.
    assert list(attachments) == ["class_shares", "anomaly"]
    assert {*attachments["anomaly"].parts} == {"deterministic-energy", "rarity"}
    # A new fit of a part takes away the sum, which was fitted with the former one.
    fit_shares(summed, trained.data, summed)
    assert list(load_model(summed).attachments) == ["class_shares"]


def test_an_attachment_of_another_model_is_refused(shared: Path, tmp_path: Path) -> None:
    copy_model(shared, tmp_path / "model")
    change_record(tmp_path / "model" / "class_shares.json", base_sha256="0" * 64)
    message = r"class_shares\.json was fitted on another model, whose base_sha256 is 0{12}"
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model")


def test_an_attachment_whose_package_is_not_installed_is_refused(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_model(shared, tmp_path / "model")
    monkeypatch.delitem(ATTACHMENTS._entries, "class_shares")  # type: ignore[attr-defined]
    message = r"class_shares\.json.* a package that is not installed.*or remove the file"
    with pytest.raises(InputError, match=message):
        load_model(tmp_path / "model")


def test_other_json_files_beside_a_model_are_no_attachments(trained: Job, tmp_path: Path) -> None:
    copy_model(trained.base, tmp_path / "model")
    (tmp_path / "model" / "notes.json").write_text('{"base_sha256": "of somebody"}')
    (tmp_path / "model" / "broken.json").write_text("{")
    assert load_model(tmp_path / "model").attachments == {}


# A data set and a kind of network.


@dataclass(frozen=True)
class Small:
    """A tiny network, and an ABNN that was fitted on the data set of the other package."""

    data: Path
    base: Path
    abnn: Path


def write_side_by_side(toy: Path, root: Path) -> Path:
    """Write the toy frames in the layout of the data set of the other package."""
    for split in ("train", "val", "test"):
        (root / split).mkdir(parents=True)
        for image in (toy / "leftImg8bit" / split).rglob("*_leftImg8bit.png"):
            stem = image.name.removesuffix("_leftImg8bit.png")
            label = next((toy / "gtFine" / split).rglob(f"{stem}_gtFine_labelIds.png"))
            shutil.copy(image, root / split / f"{stem}_rgb.png")
            shutil.copy(label, root / split / f"{stem}_gt.png")
    return root


@pytest.fixture(scope="module")
def small(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("network")
    job = Small(
        data=write_side_by_side(toy_set, folder / "data"),
        base=folder / "base",
        abnn=folder / "abnn",
    )
    torch.manual_seed(0)
    toy = label_map("toy")
    description = NetworkDescription(
        "Tiny", "", toy.classes, toy.palette, options={"width": 8}, kind="tiny"
    )
    save_network(build_network(description).eval(), job.base)
    config = folder / "config.yaml"
    config.write_text(
        f"data: {{dataset: side-by-side, root: {job.data}, crop: [64, 64], batch_size: 4}}\n"
        "abnn: {members: 2, alpha: 0.1, epochs: 1}\n"
        "trainer: {precision: 32-true}\n"
    )
    words = ("--base", job.base, "--config", config, "--out", job.abnn)
    succeed("finetune --device cpu", *words)
    return job


def test_a_kind_of_network_is_recorded(small: Small) -> None:
    assert json.loads((small.base / "network.json").read_text())["kind"] == "tiny"


def test_a_kind_of_network_gives_maps_of_a_data_set(small: Small, tmp_path: Path) -> None:
    words = ("--input", f"{small.data / 'test'}/*_rgb.png", "--out", tmp_path / "maps")
    succeed("predict", FAST, "--model", small.abnn, *words)
    reader = MapsReader(tmp_path / "maps")
    images = (small.data / "test").glob("*_rgb.png")
    assert reader.frames == sorted(path.stem for path in images)
    assert any(reader.read(name, "epistemic").max() > 0 for name in reader.frames)


def test_a_kind_of_network_is_evaluated_on_a_data_set(small: Small, tmp_path: Path) -> None:
    words = ("--root", small.data, "--out", tmp_path / "metrics.json")
    succeed("evaluate --dataset side-by-side", FAST, "--model", small.abnn, *words)
    result = json.loads((tmp_path / "metrics.json").read_text())
    assert 0 <= result["segmentation"]["miou"] <= 1


def test_a_kind_of_network_that_nobody_registers_is_refused(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    copy_model(small.base, folder)
    content = json.loads((folder / "network.json").read_text())
    del content["sha256"]
    content["kind"] = "unheard-of"
    described = NetworkDescription.from_json(content, "ours")
    content["sha256"] = network_sha256(load_file(folder / "network.safetensors"), described)
    (folder / "network.json").unlink()
    (folder / "network.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="kind of network 'unheard-of'"):
        load_network(folder)


# A score and a section of metrics.json.


def predict_words(job: Job, out: Path) -> tuple[object, ...]:
    folders = ("--model", job.base, "--input", job.frames, "--out", out)
    return ("predict", FAST, "--scores", NAMES, *folders)


@pytest.fixture(scope="module")
def maps(trained: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Maps of the scores of the other package, with overlays."""
    folder = tmp_path_factory.mktemp("scores") / "maps"
    succeed(*predict_words(trained, folder), "--overlay")
    return folder


@pytest.fixture(scope="module")
def result(trained: Job, maps: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``evaluate`` writes of these maps."""
    out = tmp_path_factory.mktemp("result") / "metrics.json"
    classes = ("--dataset toy", "--labels", trained.data / "gtFine" / "anomaly")
    anomalies = ("--anomaly-labels", trained.masks)
    succeed("evaluate --replicates 0", "--maps", maps, *classes, *anomalies, "--out", out)
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def test_the_manifest_describes_a_score_in_codes(maps: Path) -> None:
    described = json.loads((maps / "manifest.json").read_text())["maps"]["margin"]
    assert described["value"] == "(code / 65535)^2"
    assert described["component_threshold"] == 0.7


def test_the_manifest_describes_a_score_in_floats(maps: Path) -> None:
    described = json.loads((maps / "manifest.json").read_text())["maps"]["logit-spread"]
    assert described["dtype"] == "float16"
    assert described["unit"] == score.SPREAD.unit


def test_the_maps_of_a_score_hold_its_formula(maps: Path) -> None:
    reader = MapsReader(maps)
    assert reader.frames
    for name in reader.frames:
        margin = reader.read(name, "margin")
        msp = reader.read(name, "msp")
        # The second probability lies in 0..1 - p1, and msp is 1 - p1.
        assert (margin > msp - 1e-4).all()
        assert (margin < 2 * msp + 1e-4).all()
        assert margin.std() > 0
        assert reader.read(name, "logit-spread").max() < 0


def test_a_score_does_not_keep_overlays_from_being_written(maps: Path) -> None:
    for name in MapsReader(maps).frames:
        assert (maps / "overlay" / f"{name}.jpg").is_file()


def test_a_score_is_evaluated(result: dict[str, Any]) -> None:
    assert 0 < result["selective"]["margin"]["aurc"] < 1
    assert 0 < result["scores"]["margin"]["pooled"]["threshold"] <= 1
    assert result["scores"]["logit-spread"]["pooled"]["threshold"] < 0


def test_a_section_counts_all_frames(result: dict[str, Any]) -> None:
    assert result["labels"]["pixels"] > 1000


def test_a_section_is_compared_with_its_better_direction(
    result: dict[str, Any], tmp_path: Path
) -> None:
    more = result["labels"]["pixels"] + 1
    edited = {**result, "labels": {"pixels": more}}
    del edited["record_sha256"]
    (tmp_path / "fewer.json").write_text(json.dumps(result))
    (tmp_path / "more.json").write_text(json.dumps(edited))
    files = (tmp_path / "fewer.json", tmp_path / "more.json")
    assert "labels.pixels ↑" in succeed("compare", *files, "--keys labels.pixels").stdout


def test_one_pass_of_a_model_gives_the_same_numbers(
    trained: Job, result: dict[str, Any], tmp_path: Path
) -> None:
    data = ("--dataset toy-anomaly --split anomaly --replicates 0", "--root", trained.data)
    words = ("--scores", NAMES, "--out", tmp_path / "metrics.json")
    succeed("evaluate --precision float32 --threads 1", "--model", trained.base, *data, *words)
    one_pass = json.loads((tmp_path / "metrics.json").read_text())
    assert one_pass["scores"] == result["scores"]
    assert one_pass["reasons"]["labels.pixels"] == "no class labels were given"


def test_scores_are_drawn(maps: Path, tmp_path: Path) -> None:
    succeed("overlay --score margin,logit-spread", "--maps", maps, "--out", tmp_path)
    pictures = list((tmp_path / "overlay-margin").rglob("*.png"))
    assert len(pictures) == len(MapsReader(maps).frames)


def test_scores_are_reviewed_with_unit_and_colours(maps: Path, tmp_path: Path) -> None:
    succeed("review --scores all", "--maps", maps, "--out", tmp_path / "page")
    page = "".join(path.read_text() for path in (tmp_path / "page").rglob("*.js"))
    assert score.MARGIN.unit in page
    assert ">= 0.8" in page


def test_a_score_is_summarised(maps: Path) -> None:
    succeed("summary --score margin", "--maps", maps)


@pytest.mark.parametrize("verb", ["evaluate", "overlay", "review"])
def test_maps_of_a_score_that_nobody_registers_are_refused(
    verb: str, trained: Job, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(SCORES._entries, "margin")  # type: ignore[attr-defined]
    labels = ("--anomaly-labels", trained.masks)
    words: dict[str, tuple[object, ...]] = {
        "evaluate": ("evaluate --replicates 0", *labels, "--out", tmp_path / "metrics.json"),
        "overlay": ("overlay --score entropy", "--out", tmp_path / "figures"),
        "review": ("review", "--out", tmp_path / "page"),
    }
    message = refuse(*words[verb], "--maps", maps)
    assert "names the score 'margin', which is not known" in message


def test_a_score_that_nobody_registers_is_not_predicted(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(SCORES._entries, "margin")  # type: ignore[attr-defined]
    message = refuse(*predict_words(trained, tmp_path / "maps"))
    assert "there is no score 'margin'" in message


def test_maps_whose_values_have_another_form_are_refused(maps: Path, tmp_path: Path) -> None:
    shutil.copytree(maps, tmp_path / "maps")
    edit_manifest(
        tmp_path / "maps",
        lambda manifest: manifest["maps"]["entropy"].update(value="(code / 65535)^3"),
    )
    message = refuse("review", "--maps", tmp_path / "maps", "--out", tmp_path / "page")
    assert "the values of 'entropy' are (code / 65535)^3" in message


def test_an_installed_package_brings_its_score_and_its_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(str(score.__file__), tmp_path / "their_score.py")
    shutil.copy(str(metric_part.__file__), tmp_path / "their_section.py")
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[segunc.scores]\n"
        "their-margin = their_score:MARGIN\n"
        "[segunc.metrics]\n"
        "their-labels = their_section:parts\n"
    )
    known = [*SCORES]
    monkeypatch.syspath_prepend(str(tmp_path))
    for table in (SCORES, PARTS):
        monkeypatch.setattr(table, "_entries", dict(table._entries))  # type: ignore[attr-defined]
        monkeypatch.setattr(table, "_looked_outside", False)
    assert list(SCORES) == [*known, "their-margin"]
    assert SCORES["their-margin"].unit == score.MARGIN.unit
    section = PARTS["their-labels"]((), (), ())[0]
    assert section.section == ("labels",)
