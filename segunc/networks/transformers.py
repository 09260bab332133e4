"""Networks of Hugging Face transformers: semantic segmentation with logits."""

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
from segunc.networks.description import NetworkDescription
from segunc.networks.files import bounded
from segunc.networks.sources import Found, Wishes

FOREIGN = ("attn_implementation", "quantization_config", "auto_map", "use_kernels", "trust_remote_code")
"""Keys of configurations, by their endings, that name code or kernels of the hub, or code in the folder of a network."""
MAX_LABELS = 50_000


class Logits(nn.Module):
    """Make logits ``[N, C, H, W]`` of normalised images ``[N, 3, H, W]`` with a network whose output has ``logits``.

    Of the description's options, ``size`` is the (height, width) to which images are resized, for networks that take no other, and ``bgr``
    says whether the channels are swapped.
    """

    def __init__(self, network: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.network, self.size, self.bgr = network, options.get("size"), bool(options.get("bgr"))

    def forward(self, images: Tensor) -> Tensor:
        full = images.shape[-2:]
        if self.bgr:
            images = images.flip(1)
        if self.size is not None:
            images = _resized(images, self.size)
        return _resized(self.network(images)["logits"], full)


def _resized(values: Tensor, size: Any) -> Tensor:
    return F.interpolate(values, tuple(size), mode="bilinear", align_corners=False)


def names() -> tuple[str, ...]:
    """Return the classes of the installed transformers for semantic segmentation."""
    return tuple(sorted(set(modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES.values())))


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body with random weights (nothing is downloaded, no code but transformers' own is run) and its stride."""
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
        folder = Path(name)
        files = [path for path in folder.glob("*") if path.suffix in (".safetensors", ".bin")]
        with bounded(content, sum(path.stat().st_size for path in files) if folder.is_dir() else None):
            config: Any = CONFIG_MAPPING[content["model_type"]].from_dict(content)
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
    classes = tuple(config.id2label[i] for i in sorted(config.id2label))
    made_up = classes == tuple(f"LABEL_{i}" for i in range(len(classes)))
    metadata: dict[str, Any] = {"classes": None if made_up else classes}
    processor = _processor(name)
    size = (processor and processor.size) or {}
    if processor is not None:
        metadata |= _normalisation(processor)
        if size.get("height") and size.get("width"):
            metadata["inference_size"] = (size["height"], size["width"])
        if getattr(processor, "do_flip_channel_order", False):
            options["bgr"] = True
    options["size"] = _fixed_size(network, config, options)
    state = {f"network.{key}": value for key, value in network.state_dict().items()}
    metadata["options"] = options
    return Found(wishes.description("transformers", architecture, **metadata), state)


def _class(name: str) -> Any:
    if name not in names():
        message = f"'{name}' of transformers {transformers.__version__} is no network that segments frames by logits"
        raise InputError(message, hint=f"choose one of {', '.join(names())}")
    return getattr(transformers, name)


def _own(config: Any, *, offline: bool = False) -> Any:
    """Return the configuration without what makes a constructor run code that is not transformers' own, at any depth; ``offline``, also
    without what makes it open a connection.

    Refused are more labels than any network has, and, offline, a backbone that is named by its place on the hub, or by a name that
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


def _processor(name: str) -> Any:
    try:
        return transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except Exception:  # a network without a processor; what it would say is asked of the user
        return None


def _normalisation(processor: Any) -> dict[str, tuple[float, ...]]:
    """Return mean and standard deviation of images in 0..1; a processor may leave the images in 0..255, or scale them otherwise."""
    mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else ((0.0,) * 3, (1.0,) * 3)
    scale = 255.0 * processor.rescale_factor if processor.do_rescale else 255.0
    return {"mean": tuple(m / scale for m in mean), "std": tuple(s / scale for s in std)}
