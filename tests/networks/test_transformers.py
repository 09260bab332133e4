"""Networks of the library transformers become model folders that compute what the library does."""

from __future__ import annotations

import json
import math
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import segunc
from segunc import InputError, Sampler, import_network, load_network
from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network
from segunc.networks.transformers import LEAST_SCORE, QueryLogits, class_scores
from segunc.options import ImportOptions
from segunc.posteriors.abnn import ABNNPosterior
from segunc.verbs.import_network import ImportResult
from tests.support.hub_server import READER, Hub, point_client_at, serve

hf = pytest.importorskip("transformers")

from tests.support.hf_networks import (  # noqa: E402  it imports transformers
    CLASSES,
    FAMILIES,
    QUERIES,
    SEMANTIC,
    SIDE,
    network_of,
    save_network_of,
)

SIZE = (96, 160)
IMAGES = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
FIXED = ("data2vec", "dpt", "eomt", "eomt_dinov3")
"""Families that take frames of one size alone."""


def import_folder(folder: Path, out: Path, **options: Any) -> ImportResult:
    return import_network(ImportOptions(source=f"hf:{folder}", out=out, **options))


def prepared(images: Tensor, family: str) -> Tensor:
    """Return images as a network of transformers takes them."""
    mean = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    std = torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1)
    images = (images - mean) / std
    return resized(images, (SIDE, SIDE)) if family in FIXED else images


def resized(values: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(values, size, mode="bilinear", align_corners=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """The network of a family, and the model folder that is made of its folder, each once."""
    made: dict[str, tuple[Any, Path]] = {}

    def folder_of(family: str) -> tuple[Any, Path]:
        if family not in made:
            theirs = tmp_path_factory.mktemp("theirs")
            network = save_network_of(family, theirs)
            out = tmp_path_factory.mktemp("imported") / family
            import_folder(theirs, out)
            made[family] = network, out
        return made[family]

    return folder_of


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("family", SEMANTIC)
def test_a_semantic_head_computes_what_the_library_does(
    folders: Callable[[str], tuple[Any, Path]], family: str
) -> None:
    theirs, folder = folders(family)
    ours = load_network(folder)
    assert ours.description.classes == CLASSES
    with torch.no_grad():
        logits = theirs(pixel_values=prepared(IMAGES, family)).logits
        torch.testing.assert_close(ours(IMAGES), resized(logits, SIZE), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("family", QUERIES)
def test_mask_classification_has_the_scores_of_the_librarys_post_processing(
    folders: Callable[[str], tuple[Any, Path]], family: str
) -> None:
    theirs, folder = folders(family)
    ours = load_network(folder)
    more: dict[str, Any] = {}
    if family == "oneformer":
        numbers = ours.description.options["task_inputs"]
        assert [number for number in numbers if number == 0] == [0] * 71  # six words of 77
        more["task_inputs"] = torch.tensor([numbers] * len(IMAGES)).float()
    processors = {
        "mask2former": hf.Mask2FormerImageProcessor,
        "maskformer": hf.MaskFormerImageProcessor,
        "oneformer": hf.OneFormerImageProcessor,
        "eomt": hf.EomtImageProcessor,
        "eomt_dinov3": hf.EomtImageProcessor,
        "detr": hf.DetrImageProcessor,
    }
    processor = processors[family]()
    asked: dict[str, Any] = {"target_sizes": [SIZE] * len(IMAGES)}
    if "eomt" in family:
        asked["size"] = {"shortest_edge": SIDE, "longest_edge": SIDE}
    with torch.no_grad():
        outputs = theirs(pixel_values=prepared(IMAGES, family), **more)
        if "eomt" in family:
            outputs.patch_offsets = None
        expected = processor.post_process_semantic_segmentation(
            outputs, return_segmentation_scores=True, **asked
        )
        logits = ours(IMAGES)
    scores = torch.stack([result.segmentation_scores for result in expected])
    torch.testing.assert_close(logits.exp() - LEAST_SCORE, scores, rtol=1e-3, atol=1e-5)
    labels = torch.stack([result.segmentation for result in expected])
    assert (logits.argmax(1) == labels).float().mean() > 0.999


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_differ_and_are_equal_one_by_one(
    folders: Callable[[str], tuple[Any, Path]], family: str
) -> None:
    network = load_network(folders(family)[1])
    with torch.no_grad():
        before = network(IMAGES[:1])
    convert(network)
    layout = AffineLayout(network)
    still = Sampler(network, ABNNPosterior.around(layout, 0.0), draws=2, scores=("epistemic",))
    assert still(IMAGES[:1]).scores["epistemic"].max() < 1e-6
    with torch.no_grad():
        torch.testing.assert_close(network(IMAGES[:1]), before, rtol=1e-4, atol=1e-5)
    noisy = ABNNPosterior.around(layout, 0.3)
    together = Sampler(network, noisy, draws=4, chunk=4, scores=("epistemic", "entropy"))
    alone = Sampler(network, noisy, draws=4, chunk=1, scores=("epistemic", "entropy"))
    maps = together(IMAGES[:1]).scores
    assert maps["epistemic"].max() > 0
    assert not [note for note in together.report.messages if "self-check failed" in note]
    for name, values in alone(IMAGES[:1]).scores.items():
        torch.testing.assert_close(maps[name], values, rtol=1e-3, atol=1e-4)


def test_class_scores_by_hand() -> None:
    """Two queries, two classes and "no object", two pixels."""
    classes = torch.tensor([[[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]]], dtype=torch.float64).log_softmax(2)
    masks = torch.tensor([[[[0.0, math.log(3)]], [[-math.log(4), 0.0]]]], dtype=torch.float64)
    first = [math.exp(value) for value in (2, 1, 0)]
    second = [math.exp(value) for value in (0, 0, 3)]
    p = [[value / sum(first) for value in first], [value / sum(second) for value in second]]
    inside = [[1 / 2, 3 / 4], [1 / 5, 1 / 2]]  # sigmoid of the masks at both pixels
    expected = [
        [p[0][c] * inside[0][x] + p[1][c] * inside[1][x] for x in range(2)] for c in range(2)
    ]
    scores = class_scores(classes, masks)
    torch.testing.assert_close(scores[0, :, 0], torch.tensor(expected, dtype=torch.float64))


class GivenQueries(nn.Module):
    """Returns the same queries for every frame, through one normalisation layer."""

    def __init__(self, classes: Tensor, masks: Tensor) -> None:
        super().__init__()
        self.classes = classes
        self.norm = nn.LayerNorm(masks.shape[1])
        self.masks = masks

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        count = len(pixel_values)
        masks = self.masks.to(pixel_values.dtype).expand(count, -1, -1, -1)
        masks = self.norm(masks.movedim(1, -1)).movedim(-1, 1)
        classes = self.classes.to(pixel_values.dtype).expand(count, -1, -1)
        return {"class_queries_logits": classes, "masks_queries_logits": masks}


@dataclass
class ByHand:
    """Five queries, three classes and 6 x 8 pixels, in float64 from the definitions."""

    classes: Tensor  # [1, Q, C + 1]
    masks: Tensor  # [1, Q, 6, 8]

    def scores(self, gamma: Tensor, beta: Tensor) -> Tensor:
        """Return the class scores ``[6, 8, C]`` for affine parameters ``[Q]`` of the layer."""
        flat = self.masks[0].double().movedim(0, -1)
        centred = flat - flat.mean(-1, keepdim=True)
        normal = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        inside = 1 / (1 + (-(normal * gamma + beta)).exp())  # [6, 8, Q]
        weights = self.classes[0].double().exp()
        queries = (weights / weights.sum(-1, keepdim=True))[:, :-1]  # [Q, C]
        return (inside[..., None] * queries).sum(-2)


def shares(scores: Tensor) -> Tensor:
    """Return probabilities ``[6, 8, C]`` of class scores."""
    return (scores + 1e-6) / (scores + 1e-6).sum(-1, keepdim=True)


def entropy(p: Tensor) -> Tensor:
    return -(p * p.log()).sum(-1) / math.log(3)


@pytest.fixture
def by_hand() -> tuple[ByHand, Sampler]:
    generator = torch.Generator().manual_seed(0)
    expected = ByHand(
        torch.randn(1, 5, 4, generator=generator), torch.randn(1, 5, 6, 8, generator=generator)
    )
    body = QueryLogits(GivenQueries(expected.classes, expected.masks), {})
    description = NetworkDescription("given", "", ("road", "car", "sky"), kind="python")
    network = SegmentationNetwork(body, description, stride=1).eval()
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.5)
    names = ("entropy", "epistemic", "rba", "deterministic-energy", "deterministic-entropy")
    return expected, Sampler(network, posterior, draws=2, seed=3, scores=names)


def test_scores_of_the_base_by_hand_in_float64(by_hand: tuple[ByHand, Sampler]) -> None:
    expected, sampler = by_hand
    maps = sampler(torch.rand(1, 3, 6, 8)).scores
    scores = expected.scores(torch.ones(5).double(), torch.zeros(5).double())
    assert_map(maps["rba"], -scores.tanh().sum(-1))
    assert_map(maps["deterministic-energy"], -scores.sum(-1).log())
    assert_map(maps["deterministic-entropy"], entropy(shares(scores)))


def test_scores_of_noisy_draws_by_hand_in_float64(by_hand: tuple[ByHand, Sampler]) -> None:
    expected, sampler = by_hand
    maps = sampler(torch.rand(1, 3, 6, 8)).scores
    noise = sampler.noise.normal([0, 1], 5).double()
    draws = []
    for eps in noise:
        scores = expected.scores(1 + 0.5 * eps, torch.zeros(5).double())
        draws.append(shares(scores))
    total = entropy((draws[0] + draws[1]) / 2)
    aleatoric = (entropy(draws[0]) + entropy(draws[1])) / 2
    assert_map(maps["entropy"], total)
    assert_map(maps["epistemic"], total - aleatoric)
    assert float((total - aleatoric).max()) > 1e-3


@pytest.mark.usefixtures("offline")
def test_a_backbone_that_is_named_and_not_described_needs_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "theirs"
    save_network_of("detr", folder)
    path = folder / "config.json"
    old_form = {"backbone": "microsoft/resnet-50", "backbone_config": None}
    content = json.loads(path.read_text()) | old_form | {"use_timm_backbone": False}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="does not describe its backbone microsoft/res") as error:
        import_folder(folder, tmp_path / "imported")
    assert "import it once with a connection" in error.value.hint
    assert "\n" not in str(error.value)


def test_a_network_that_classifies_masks_is_exported_for_one_size(
    folders: Callable[[str], tuple[Any, Path]], tmp_path: Path
) -> None:
    _, folder = folders("mask2former")
    with pytest.raises(InputError, match="is not exported for frames of any size") as error:
        segunc.export(model=folder, to="pt2", size="dynamic", out=tmp_path / "any")
    assert "a file for each size" in error.value.hint
    fixed = segunc.export(model=folder, to="pt2", size=SIZE, draws=2, out=tmp_path / "fixed")
    assert fixed.path.exists()


def test_draws_of_oneformer_run_together(folders: Callable[[str], tuple[Any, Path]]) -> None:
    _, folder = folders("oneformer")
    network = load_network(folder)
    convert(network)
    posterior = ABNNPosterior.around(AffineLayout(network), 0.1)
    sampler = Sampler(network, posterior, draws=3, chunk=3, scores=("entropy",))
    sampler(torch.rand(1, 3, *SIZE))
    assert sampler.report.batched
    assert not any("one at a time" in message for message in sampler.report.messages)


def assert_map(values: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(values[0].double(), expected, rtol=1e-4, atol=1e-5)


def test_a_pixel_that_no_query_claims_is_most_uncertain() -> None:
    classes = torch.tensor([[[5.0, 0.0, -5.0]]])
    masks = torch.tensor([[[[-60.0, 9.0]]]])
    logits = QueryLogits(GivenQueries(classes, masks), {})
    logits.network.norm = nn.Identity()  # type: ignore[union-attr]
    shares = logits(torch.zeros(1, 3, 1, 2)).softmax(1)
    torch.testing.assert_close(shares[0, :, 0, 0], torch.tensor([0.5, 0.5]))
    assert shares[0, 0, 0, 1] > 0.99


def test_what_the_image_processor_says(tmp_path: Path) -> None:
    save_network_of(
        "segformer",
        tmp_path / "theirs",
        do_resize=True,
        size={"height": 48, "width": 80},
        do_reduce_labels=True,
    )
    result = import_folder(tmp_path / "theirs", tmp_path / "out")
    assert result.description.mean == pytest.approx((0.4, 0.5, 0.6))
    assert result.description.std == pytest.approx((0.2, 0.25, 0.3))
    assert result.description.inference_size == (48, 80)
    assert "label files is class 0 here" in " ".join(result.notes)


def test_what_the_user_says_comes_first(tmp_path: Path) -> None:
    save_network_of("segformer", tmp_path / "theirs")
    options = {"mean": (0.1, 0.1, 0.1), "classes": "a,b,c,d", "size": (64, 96)}
    result = import_folder(tmp_path / "theirs", tmp_path / "out", **options)
    assert result.description.mean == (0.1, 0.1, 0.1)
    assert result.description.classes == ("a", "b", "c", "d")
    assert result.description.inference_size == (64, 96)


@pytest.mark.parametrize(
    ("size", "inference_size"),
    [
        ({"shortest_edge": 1024, "longest_edge": 2048}, (1024, 2048)),
        ({"shortest_edge": 640, "longest_edge": 2560}, None),
        ({"shortest_edge": 640}, None),
    ],
)
def test_the_size_of_a_processor_with_edges(
    tmp_path: Path, size: dict[str, int], inference_size: tuple[int, int] | None
) -> None:
    save_network_of("segformer", tmp_path / "theirs")
    record = tmp_path / "theirs/preprocessor_config.json"
    content = json.loads(record.read_text()) | {"do_resize": True, "size": size}
    content["image_processor_type"] = "Mask2FormerImageProcessor"
    record.write_text(json.dumps(content))
    # The size of frames is tried at the import, so that a large one is not run here.
    given = {"size": (64, 96)} if inference_size else {}
    result = import_folder(tmp_path / "theirs", tmp_path / "out", **given)
    if inference_size is None:
        assert "shorter side of frames to 640 pixels" in " ".join(result.notes)
        assert result.description.inference_size is None
    from segunc.networks.transformers import _processor_of

    assert _processor_of("theirs", tmp_path / "theirs").size == inference_size


def test_blue_green_red_and_images_in_0_to_255(tmp_path: Path) -> None:
    theirs = save_network_of("mobilevit", tmp_path / "theirs")
    processor = hf.MobileViTImageProcessor(do_resize=False, do_center_crop=False, do_rescale=False)
    processor.save_pretrained(tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "out")
    ours = load_network(tmp_path / "out")
    with torch.no_grad():
        logits = theirs(pixel_values=255 * IMAGES.flip(1)).logits
        torch.testing.assert_close(ours(IMAGES), resized(logits, SIZE), rtol=1e-3, atol=1e-4)


def test_the_auxiliary_head_is_left_out(folders: Callable[[str], tuple[Any, Path]]) -> None:
    names = load_network(folders("upernet")[1]).state_dict()
    assert not [name for name in names if "auxiliary" in name]


def test_a_network_without_a_processor_needs_its_normalisation(tmp_path: Path) -> None:
    network_of("segformer").save_pretrained(tmp_path / "theirs")
    with pytest.raises(InputError, match="does not give its mean"):
        import_folder(tmp_path / "theirs", tmp_path / "out")
    import_folder(tmp_path / "theirs", tmp_path / "out", mean=(0, 0, 0), std=(1, 1, 1))


def test_made_up_names_of_classes_are_asked_for(tmp_path: Path) -> None:
    save_network_of("segformer", tmp_path)
    change_config(tmp_path, id2label={str(number): f"LABEL_{number}" for number in range(4)})
    with pytest.raises(InputError, match="does not give its class names"):
        import_folder(tmp_path, tmp_path / "out")


def change_config(folder: Path, **values: Any) -> None:
    content = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(content))


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def other_classes(folder: Path) -> None:
    change_config(folder, id2label={str(number): f"class {number}" for number in range(9)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "config.json").unlink(),
            r"config\.json cannot be read \(No such file",
        ),
        (remove_weights, "holds no weights"),
        (cut_weights, "cannot read hf:"),
        (other_classes, "lacks 2 weights of SegformerForSemanticSegmentation"),
        (
            lambda folder: change_config(folder, auto_map={"AutoModel": "code.Net"}),
            r"asks for code of its own \(auto_map in config.json\), which never runs",
        ),
        (
            lambda folder: change_config(folder, architectures=["ViTForImageClassification"]),
            r"'ViTForImageClassification' of transformers .* does not segment frames",
        ),
        (
            lambda folder: change_config(folder, architectures=["MaskFormerModel"]),
            "does not segment frames",
        ),
        (lambda folder: change_config(folder, architectures=None), "does not say which network"),
        (lambda folder: change_config(folder, depths="many"), "cannot read hf:"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_sentence(
    tmp_path: Path, change: Callable[[Path], Any], message: str
) -> None:
    save_network_of("segformer", tmp_path / "theirs")
    change(tmp_path / "theirs")
    with pytest.raises(InputError, match=message) as error:
        import_folder(tmp_path / "theirs", tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_oneformer_without_words_is_refused(tmp_path: Path) -> None:
    save_network_of("oneformer", tmp_path / "theirs")
    for path in (tmp_path / "theirs").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(InputError, match="no tokenizer with the words"):
        import_folder(tmp_path / "theirs", tmp_path / "out")


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"pip install 'segunc\[transformers\]'"):
        import_folder(tmp_path, tmp_path / "out")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "values",
    [
        {"backbone": "facebook/dinov2-base", "use_timm_backbone": False, "backbone_config": None},
        {"backbone_config": {"model_type": "timm_backbone", "backbone": "hf_hub:owner/name"}},
        {"backbone": "resnet50", "use_timm_backbone": True, "backbone_config": None},
    ],
)
def test_a_description_that_names_a_place_is_refused(
    folders: Callable[[str], tuple[Any, Path]], values: dict[str, Any]
) -> None:
    description = load_network(folders("upernet")[1]).description
    options = {"config": {**description.options["config"], **values}}
    other = NetworkDescription(
        description.architecture, "", CLASSES, options=options, kind="transformers"
    )
    with pytest.raises(InputError, match="a place instead of a description"):
        build_network(other)


@pytest.mark.usefixtures("offline")
def test_code_that_a_description_names_is_not_taken(
    folders: Callable[[str], tuple[Any, Path]],
) -> None:
    description = load_network(folders("segformer")[1]).description
    named = {
        "attn_implementation": "owner/kernel",
        "_attn_implementation": "owner/kernel",
        "auto_map": {"AutoConfig": "code.Config"},
        "num_labels": 10**9,
    }
    options = {"config": {**description.options["config"], **named}}
    other = NetworkDescription(
        description.architecture, "", CLASSES, options=options, kind="transformers"
    )
    network = build_network(other).body.network
    assert network.config.num_labels == len(CLASSES)  # type: ignore[union-attr]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one network at two revisions, and a client that knows no other."""
    with serve() as server:
        point_client_at(server, tmp_path, monkeypatch)
        save_network_of("segformer", tmp_path / "theirs")
        files = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
        repo = server.repo("owner/roads", {**files, "code.py": b"raise SystemExit(9)"})
        change_config(
            tmp_path / "theirs", id2label={str(n): f"old {n}" for n in range(4)}, label2id={}
        )
        files["config.json"] = (tmp_path / "theirs/config.json").read_bytes()
        repo.commit(files, "old", ref="v1")
        yield server
        assert server.unknown == []


def import_name(name: str, out: Path) -> ImportResult:
    return import_network(ImportOptions(source=f"hf:{name}", out=out))


def test_a_network_of_the_hub_by_its_name(hub: Hub, tmp_path: Path) -> None:
    result = import_name("owner/roads", tmp_path / "out")
    assert result.description.classes == CLASSES
    provenance = result.description.provenance
    assert provenance["imported"] == "hf:owner/roads"
    assert provenance["commit"] == hub.repos["owner/roads"].refs["main"]
    assert hub.downloaded() == {"config.json", "preprocessor_config.json"}  # and large files
    assert not [request for request in hub.requests if "code.py" in request]


def test_a_revision_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    result = import_name("owner/roads@v1", tmp_path / "out")
    assert result.description.classes == ("old 0", "old 1", "old 2", "old 3")
    assert result.description.provenance["commit"] == hub.repos["owner/roads"].refs["v1"]


def test_the_cache_serves_where_there_is_no_network(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    import_name("owner/roads", tmp_path / "first")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    requests = list(hub.requests)
    import_name("owner/roads", tmp_path / "second")
    assert hub.requests == requests
    with pytest.raises(
        InputError, match=r"'owner/other' is not in the cache .* HF_HUB_OFFLINE is set"
    ):
        import_name("owner/other", tmp_path / "third")


def test_weights_of_pytorch_are_read_where_there_are_no_others(hub: Hub, tmp_path: Path) -> None:
    network = network_of("segformer")
    torch.save(network.state_dict(), tmp_path / "pytorch_model.bin")
    files = dict(hub.repos["owner/roads"].files())
    del files["model.safetensors"]
    files["pytorch_model.bin"] = (tmp_path / "pytorch_model.bin").read_bytes()
    hub.repo("owner/older", files)
    import_name("owner/older", tmp_path / "out")
    ours = load_network(tmp_path / "out").state_dict()
    for name, value in network.state_dict().items():
        assert torch.equal(ours[f"body.network.{name}"], value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/nothing", "no folder and no model 'owner/nothing' on the Hub"),
        ("owner/roads@v9", "owner/roads has no revision 'v9'"),
        ("owner/gated", "gives access on request"),
        ("owner/empty", "has no config.json"),
        ("a/b/c", "folder a/b/c does not exist"),
        ("./roads", "folder ./roads does not exist"),
        ("owner/ro ads", "no name on the Hub"),
    ],
)
def test_what_is_wrong_with_a_name(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    hub.repo("owner/gated", hub.repos["owner/roads"].files(), gated=True)
    hub.repo("owner/empty", {"README.md": b"# nothing"})
    monkeypatch.setenv("HF_TOKEN", READER)
    with pytest.raises(InputError, match=message) as error:
        import_name(name, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_hub_that_does_not_answer(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    nowhere = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    template = nowhere + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    with pytest.raises(InputError, match="the Hub cannot be reached for 'owner/roads'"):
        import_name("owner/roads", tmp_path / "out")
