"""What is recorded of a model and its sampler beside the maps that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from segunc.core.bounds import Count, Seed, check_value
from segunc.core.device import describe_device
from segunc.core.errors import InputError
from segunc.data.channels import ORDER, SCALES
from segunc.data.datasets import DATA_OF_PROGRAM, is_data_set
from segunc.data.images import AnyImage
from segunc.data.training_frames import (
    SEEN_SPLITS,
    SELECTION,
    frames_record,
    is_selected_on_train,
)
from segunc.maps.encoding import encode_score
from segunc.maps.learned_frames import learned_record
from segunc.maps.regions import strongest_regions
from segunc.networks.description import COLOUR, NetworkDescription
from segunc.networks.network import SegmentationNetwork
from segunc.posteriors.image_maps import ImageMaps
from segunc.posteriors.map_origin import Origin, ScoreMap
from segunc.sampling.branches import AnyPosterior
from segunc.sampling.sampler import Reasons, Sampler, sample_frames
from segunc.scores import SCORES


@dataclass(frozen=True)
class Sampling:
    """What a model is asked for: plain numbers and names, of which a record can be written."""

    draws: int
    seed: int
    scores: tuple[str, ...]


def check_sampling(draws: Any, seed: Any, scores: Any) -> Sampling:
    """Return draws, a seed and names of scores, also of NumPy's whole numbers or of a generator.

    Raises:
        InputError: one is of another type, or out of bounds.
    """
    check_value("draws", draws, Count, "the number of sampled networks, e.g. draws=8")
    check_value("seed", seed, Seed, "a whole number of at least 0")
    if isinstance(scores, str):
        raise InputError(f"scores is one text, '{scores}'", hint=f'scores=("{scores}",)')
    return Sampling(int(draws), int(seed), tuple(scores))


def sampler_record(sampler: Sampler, used: Iterable[Any]) -> dict[str, Any]:
    """Return what a run records of what was fitted on its model: T of the logits, the calibrator of
    the mean, and what scores are made of.

    Args:
        sampler: of the run.
        used: the attachments that give evidence for its scores.
    """
    record: dict[str, Any] = {"temperature": sampler.fitted.temperature}
    calibrator = sampler.fitted.calibrator
    if calibrator:
        record["calibrator"] = str(calibrator)
        record["calibrator_sha256"] = calibrator.sha256
    for attachment in used:
        record.update(attachment.record())
    return record


def model_record(
    network: SegmentationNetwork,
    posterior: AnyPosterior,
    provenance: object,
    attachments: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what a manifest says of a model, for readers of its maps.

    Args:
        network: of the model.
        posterior: of the model.
        provenance: that the record of the posterior holds, or None.
        attachments: what was fitted on the model, by name.
    """
    description = network.description
    calibration = attachments.get("calibration")
    features = attachments.get("features")
    size = description.inference_size
    record: dict[str, Any] = {
        "architecture": f"{description.architecture} {description.encoder}",
        "inference_size": None if size is None else list(size),
        "method": posterior.method,
        "members": posterior.members,
        "parameters": posterior.settings(),
        "provenance": provenance,
        "calibration": calibration and asdict(calibration),
    }
    if features:
        record["feature_encoder"] = features.encoder
    rounds = getattr(features, "verdicts", ())
    if rounds:
        record["verdicts"] = learned_record(rounds)
    records = chosen_on(description.provenance, attachments, provenance)
    if records:
        record["chosen_on"] = records
    return record


def chosen_on(
    trained: Mapping[str, Any], attachments: Mapping[str, Any], of_posterior: object = None
) -> list[dict[str, str]]:
    """Return what was chosen or fitted on which split of which data set, as far as it is recorded.

    Of images without a data set, whose frames are not recorded, ``images`` names the folder, the
    video or the recording. Frames that a program handed over have no data set, too.

    Args:
        trained: how the network was trained, by its description.
        attachments: what was fitted on the model, by name.
        of_posterior: how the posterior was made, by its record; None without one. Earlier versions
            did not record the splits.
    """
    records: list[dict[str, str]] = []
    if trained.get("trained"):
        records.append({"what": "weights", "dataset": str(trained["dataset"]), "split": "train"})
    # Another way to validate makes a split of its own, which no data set has.
    if trained.get("trained") and trained.get("validation") == "val":
        on_train = is_selected_on_train("val", frames_record(trained))
        split = SELECTION if on_train else "val"
        records.append({"what": "epoch", "dataset": str(trained["dataset"]), "split": split})
    seen = of_posterior.get(SEEN_SPLITS, ()) if isinstance(of_posterior, Mapping) else ()
    fits = [("posterior", made) for made in seen]
    for name, attachment in attachments.items():
        fits.append((name, getattr(attachment, "fitted_on", {})))
    for name, made in fits:
        if made.get("dataset") and made.get("split"):
            where = {"dataset": str(made["dataset"]), "split": str(made["split"])}
            if _is_of_images(made):
                where["images"] = where["dataset"]
            records.append({"what": name, **where})
    return records


def _is_of_images(made: Mapping[str, Any]) -> bool:
    """Return whether a record of a fit names a folder, a video or a recording of images."""
    dataset = str(made["dataset"])
    packaged = made.get("packaged", {}).get("source")
    return not is_data_set(dataset) and dataset not in (packaged, DATA_OF_PROGRAM)


def channels_record(description: NetworkDescription) -> dict[str, Any]:
    """Return what a run records of images of other than three channels: how many there are, in
    which order, and the values of white by their type. Nothing for images in colour.
    """
    if description.channels == COLOUR:
        return {}
    return {
        "channels": description.channels,
        "channel_order": ORDER,
        "white": {**SCALES, "float": 1.0},
    }


def component_thresholds(scores: Iterable[str]) -> dict[str, float]:
    """Return from which value on the pixels of each score form components, in the order of the
    table of scores.
    """
    chosen = set(scores)
    thresholds: dict[str, float] = {}
    for name in SCORES:
        threshold = SCORES[name].threshold if name in chosen else None
        if threshold is not None:
            thresholds[name] = threshold
    return thresholds


def extrapolated_beyond(attachments: Iterable[Any]) -> dict[str, float]:
    """Return beyond which value each score is extrapolated, which is known where a sum of scores
    was fitted.
    """
    measured_to: dict[str, float] = {}
    for attachment in attachments:
        measured = getattr(attachment, "measured_to", None)
        if measured:
            measured_to["anomaly"] = measured
    return measured_to


def origin_of(
    sampler: Sampler, used: Sequence[Any], hashes: Mapping[str, Any], model: Mapping[str, Any]
) -> Origin:
    """Return what made the maps of a sampler, with the settings that ``segunc predict`` records.

    Args:
        sampler: which makes the maps.
        used: the attachments that give evidence for its scores.
        hashes: of the model, ``base_sha256`` and ``posterior_sha256``.
        model: :func:`model_record`.
    """
    run = {
        "base_sha256": hashes["base_sha256"],
        "posterior_sha256": hashes["posterior_sha256"],
        **sampler_record(sampler, used),
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        "scope": sampler.scope,
        "size": None,
        "store": "png",
        "precision": sampler.precision,
        "chunk": None,  # is chosen for each frame
        "group": 1,
        "threads": torch.get_num_threads(),
        "device": sampler.device.type,
        "maps": list(sampler.scores),
        "overlay": None,
        "component_thresholds": component_thresholds(sampler.scores),
        "mask_sha256": None,
    }
    network = sampler.network
    if isinstance(network, SegmentationNetwork):
        run.update(channels_record(network.description))
    return Origin(run, model, describe_device(sampler.device), extrapolated_beyond(used))


def sample_image(sampler: Sampler, image: AnyImage, origin: Origin | None) -> ImageMaps:
    """Return the maps of one image, at its own size.

    Args:
        sampler: over a :class:`SegmentationNetwork`.
        image: ``[H, W, K]``, uint8 or float32 in 0..1, K the channels of the network.
        origin: what makes the maps; None where no hash is that of the network.
    """
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)
    result = sample_frames(sampler, [image])
    scores = {name: values[0].cpu().numpy() for name, values in result.scores.items()}
    reasons = _reasons_of(scores, result.reasons[0]) if result.reasons else {}
    return ImageMaps(
        prediction=result.prediction[0].cpu().numpy(),
        scores=scores,
        image=image,
        classes=network.description.classes,
        palette=network.description.palette,
        origin=origin,
        reasons=reasons,
    )


def _reasons_of(
    scores: Mapping[str, ScoreMap], reasons: Reasons
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return what made the strongest pixel of each strong region of sums of scores: what
    ``segunc predict`` records of a frame. It is asked at once, because what gives the reasons holds
    features of the whole frame.
    """
    made: dict[tuple[int, int], dict[str, Any]] = {}
    for name, threshold in component_thresholds(scores).items():
        if "scores" not in SCORES[name].sources:
            continue
        try:
            stored = encode_score(name, scores[name])
        except InputError:  # such maps cannot be saved, which says so
            continue
        pixels = [region.peak for region in strongest_regions(stored, threshold)]
        made.update(zip(pixels, reasons(pixels), strict=True))
    return made
