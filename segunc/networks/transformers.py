"""Networks of Hugging Face transformers: semantic segmentation with logits, and mask classification with queries.

A mask-classification network gives for each query q the probabilities of the classes (and of "no object") and of each pixel
belonging to the query's mask. The score of a class at a pixel is ``s_c = sum_q softmax(class)_qc * sigmoid(mask)_q`` (Cheng et
al., NeurIPS 2021, arXiv 2107.06278, section 3.4), made and resized as transformers' own post-processing does. The logits here
are ``ln s_c``, so that the softmax normalises the scores (``s_c / sum s``) in everything that takes logits; scores which are
defined on ``s`` itself (:mod:`segunc.scores`) take the exponential.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.networks.build import bounded
from segunc.networks.description import NetworkDescription
from segunc.networks.sources import Found, Wishes

KIND = "transformers"
SMALLEST_SCORE = 1e-6
"""Added to scores of queries before the logarithm; sums of sigmoids are rarely below."""
MASK_SIZES = {"Mask2FormerForUniversalSegmentation": (384, 384)}
"""To what masks are resized before they become scores, in transformers' post-processing; those of EoMT to the size of its input."""
QUERIES = (("class_queries_logits", "masks_queries_logits"), ("logits", "pred_masks"))
"""Names under which networks return what they say of their queries: ``[N, Q, C + 1]`` and ``[N, Q, h, w]``."""
FOREIGN = ("attn_implementation", "quantization_config", "auto_map", "use_kernels", "trust_remote_code")
"""Keys of configurations, by their endings, that name code or kernels of the hub, or code in the folder of a network."""
MAX_LABELS = 50_000


class Logits(nn.Module):
    """Make logits of a network of transformers, from normalised images ``[N, 3, H, W]`` to logits ``[N, C, H, W]``.

    Args:
        network: its output has ``logits``, or ``class_queries_logits`` and ``masks_queries_logits``.
        options: ``size``: (height, width) to which images are resized, for networks that take no other; ``mask_size``: to
            which masks are resized before they become scores; ``bgr``: whether the channels are swapped; ``queries``: whether
            it classifies masks.
    """

    def __init__(self, network: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.size, self.mask_size = options.get("size"), options.get("mask_size")
        self.logarithms = bool(options.get("queries"))
        self.bgr = bool(options.get("bgr"))

    def forward(self, images: Tensor) -> Tensor:
        full = images.shape[-2:]
        if self.bgr:
            images = images.flip(1)
        if self.size is not None:
            images = _resized(images, self.size)
        output = self.network(images)
        if not self.logarithms:
            return _resized(output["logits"], full)
        classes, masks = next((output[c], output[m]) for c, m in QUERIES if m in output)
        if self.mask_size is not None:
            masks = _resized(masks, self.mask_size)
        classes = classes.softmax(-1)[..., :-1]  # the last is "no object"
        scores = torch.einsum("nqc,nqhw->nchw", classes, masks.sigmoid())
        return _resized(scores.float(), full).add(SMALLEST_SCORE).log()


def _resized(values: Tensor, size: Any) -> Tensor:
    return F.interpolate(values, tuple(size), mode="bilinear", align_corners=False)


def names() -> tuple[str, ...]:
    """Return the classes of the installed transformers that segment: semantic ones, and mask classification."""
    tables = (
        modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES,
    )
    # Those for video take clips of frames, OneFormer takes the words of its task.
    other = ("Video", "OneFormer")
    return tuple(sorted({name for table in tables for name in table.values() if not name.startswith(other)}))


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body with random weights (nothing is downloaded, no code but transformers' own is run) and its stride.

    Raises:
        InputError: no such class in the installed transformers, or a configuration that it does not take.
    """
    cls = _class(description.architecture)
    options = description.options
    content = _own(options.get("config"), offline=True)
    try:
        config = cls.config_class.from_dict(content)
        config.num_labels = description.num_classes
        network = cls._from_config(config)
    except Exception as error:  # what configurations and constructors raise has no common type
        if is_out_of_memory(error):
            raise
        message = f"transformers {transformers.__version__} cannot build {description.architecture} ({one_line(error)})"
        raise InputError(message, hint="import the network with this version again") from error
    return Logits(network, options), _stride(config) if options.get("size") is None else 1


def read(name: str, wishes: Wishes) -> Found:
    """Return a network from a folder that ``save_pretrained`` wrote, or from the hub, with the metadata of its image processor."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # AutoConfig would run code that a configuration names, where somebody answers "y" on standard input.
        content = _own(transformers.PreTrainedConfig.get_config_dict(name)[0])
        architecture = (content.get("architectures") or [""])[0]
        cls = _class(architecture)
        with bounded(content, _bytes(Path(name))):
            config = CONFIG_MAPPING[content["model_type"]].from_dict(content)
            network = cls.from_pretrained(name, config=config, trust_remote_code=False)
    except InputError:
        raise
    except Exception as error:
        hint = (
            "name a folder of save_pretrained or a network of the hub; one with code of its own is imported as python:"
        )
        raise InputError(f"transformers cannot read '{name}' ({one_line(error)})", hint=hint) from error
    kept = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
    options: dict[str, Any] = {"config": kept} | dict(wishes.arguments)
    metadata: dict[str, Any] = {"classes": _classes(config)}
    processor = _processor(name)
    if processor is not None:
        metadata |= _normalisation(processor)
        size = processor.size or {}
        if size.get("height") and size.get("width"):
            metadata["inference_size"] = (size["height"], size["width"])
        if getattr(processor, "do_flip_channel_order", False):
            options["bgr"] = True
    if architecture in modeling_auto.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES.values():
        options["queries"] = True
    options["mask_size"] = MASK_SIZES.get(architecture)
    options["size"] = _fixed_size(network, config, options)
    if architecture.startswith("Eomt"):
        options["mask_size"] = options["size"]
    state = {f"network.{key}": value for key, value in network.state_dict().items()}
    metadata["options"] = options
    shorter_side = ((processor and processor.size) or {}).get("shortest_edge")
    return Found(wishes.description(KIND, architecture, **metadata), state, shorter_side)


def _bytes(folder: Path) -> int | None:
    """Return the bytes of the files of weights in a folder; None for the name of a network on the hub."""
    files = [path for path in folder.glob("*") if path.suffix in (".safetensors", ".bin")]
    return sum(path.stat().st_size for path in files) if folder.is_dir() else None


def _class(name: str) -> Any:
    if name not in names():
        message = f"'{name}' of transformers {transformers.__version__} is no network that segments frames"
        raise InputError(message, hint=f"choose one of {', '.join(names())}")
    return getattr(transformers, name)


def _own(config: Any, *, offline: bool = False) -> Any:
    """Return the configuration without what makes a constructor run code that is not transformers' own, at any depth.

    Args:
        offline: also without what makes a constructor open a connection.

    Raises:
        InputError: more labels than any network has, or, offline, a backbone that is named by its place on the hub, or by a name that
            transformers would look for there: whatever is described by its name alone, and is no network of timm.
    """
    if isinstance(config, list):
        return [_own(item, offline=offline) for item in config]
    if not isinstance(config, dict):
        return config
    labels = config.get("num_labels")
    if isinstance(labels, int) and labels > MAX_LABELS:  # transformers makes up a name for each
        raise InputError(f"a network of {labels} labels has more than {MAX_LABELS}")
    described = config.get("backbone_config") is not None or config.get("model_type") == "timm_backbone"
    for key in ("backbone", "architecture") if offline else ():
        name = config.get(key)
        if isinstance(name, str) and (set(name) & set(":/") or (key == "backbone" and not described)):
            message = f"a network with the {key} '{name}' would open a connection to build it"
            raise InputError(message, hint="import it again")
    kept = {key: _own(value, offline=offline) for key, value in config.items() if not str(key).endswith(FOREIGN)}
    return kept | {key: False for key in kept if offline and key == "use_pretrained_backbone"}


def _stride(config: Any) -> int:
    """Return what heights and widths must be divisible by: the patch of a transformer where 32 is no multiple of it."""
    sizes = [value for value in _values(config.to_dict(), "patch_size") if isinstance(value, int) and value > 0]
    return next((size for size in sizes if 32 % size), 32)


def _fixed_size(network: nn.Module, config: Any, options: Mapping[str, Any]) -> list[int] | None:
    """Return the (height, width) of the network's configuration where it fails on every other."""
    size = getattr(config, "image_size", None)
    pair = [size, size] if isinstance(size, int) else size and list(size)
    stride = _stride(config)
    try:
        with torch.inference_mode():
            Logits(network.eval(), options)(torch.zeros(1, 3, 4 * stride, 6 * stride))
    except Exception:  # the shapes that do not fit together raise whatever they meet first
        return pair
    return None


def _values(config: Any, name: str) -> Iterator[Any]:
    if isinstance(config, dict):
        for key, value in config.items():
            if key == name:
                yield value
            yield from _values(value, name)


def _classes(config: Any) -> tuple[str, ...] | None:
    """Return the names of the classes, unless transformers made them up."""
    classes = tuple(config.id2label[i] for i in sorted(config.id2label))
    return None if classes == tuple(f"LABEL_{i}" for i in range(len(classes))) else classes


def _processor(name: str) -> Any:
    try:
        return transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except Exception:  # a network without a processor; what it would say is asked of the user
        return None


def _normalisation(processor: Any) -> dict[str, tuple[float, ...]]:
    """Return mean and standard deviation of images in 0..1."""
    # A processor may leave the images in 0..255, or scale them otherwise.
    scale = 1.0 if not processor.do_rescale else 255.0 * processor.rescale_factor
    mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else ((0.0,) * 3, (1.0,) * 3)
    scale = scale if processor.do_rescale else 255.0
    return {"mean": tuple(m / scale for m in mean), "std": tuple(s / scale for s in std)}
