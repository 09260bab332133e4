"""Networks of the library ``transformers``: what stands behind ``segunc import hf:NAME``.

Two kinds of networks segment frames there. Semantic heads return logits of the classes, often at a
quarter of the size. Mask classification returns Q queries: each has probabilities of the C classes
and of "no object", and the probability of each pixel to belong to its mask. The score of class c at
a pixel is (Cheng et al., NeurIPS 2021, arXiv 2107.06278, section 3.4)

    s_c = sum over q of softmax(class_q)_c * sigmoid(mask_q)

made and resized as transformers' own ``post_process_semantic_segmentation`` does. The logits are
``ln(s_c + 1e-6)``, so that their softmax is s_c divided by the sum of all scores, and their energy
is ``-ln sum_c s_c``: how little any query claims the pixel for any class.

The library and its models never run code of a repository: only classes of the installed
transformers are built, from a configuration that is kept in ``network.json``.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from segunc.core.errors import InputError, is_out_of_memory, one_line
from segunc.core.files import read_json
from segunc.networks.description import COLOUR, NetworkDescription
from segunc.networks.import_sources import Found, Wishes

KIND = "transformers"
INSTALL = "pip install 'segunc[transformers]'"
LEAST_SCORE = 1e-6
"""Added to class scores before the logarithm, so that a pixel that no query claims has finite
logits; all classes are then equally likely.
"""
MASK_SIZES = {"Mask2FormerForUniversalSegmentation": [384, 384]}
"""(height, width) to which transformers' post-processing resizes masks before they become scores.
Those of EoMT get the size of the network's input; the others keep theirs.
"""
QUERIES = (("class_queries_logits", "masks_queries_logits"), ("logits", "pred_masks"))
"""Names of ``[N, Q, C + 1]`` and ``[N, Q, h, w]`` in outputs; the second pair is that of DETR."""
QUERIES_FIRST = ("Mask2Former", "OneFormer")
"""Beginnings of the names of classes whose decoder holds queries before frames."""
NO_FRAMES = ("Videomt",)
"""Beginnings of the names of classes that take clips of several frames."""
FOREIGN = (
    "attn_implementation",
    "auto_map",
    "quantization_config",
    "trust_remote_code",
    "use_kernels",
)
"""Ends of keys of a configuration that name code or kernels which are not transformers' own."""
UNUSED = ("_name_or_path", "id2label", "label2id", "num_labels", "transformers_version")
"""Keys that a model folder does not need: it has the classes in its description."""
FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
SAFE_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model.bin.index.json")
"""Read by torch without executing anything (``weights_only``)."""
TASK = "the task is semantic"
"""What OneFormer is told, in the words of its training."""
PROBES = ((128, 192), (192, 128), (256, 384))
"""(height, width) of frames; a network that takes none of them takes one size alone."""


class Logits(nn.Module):
    """Make logits ``[N, C, H, W]`` of normalised images ``[N, 3, H, W]`` with a semantic head.

    Args:
        network: of transformers; its output has ``logits`` of any size.
        options: of the description: ``size`` (height, width) to which images are resized, for a
            network that takes no other; ``bgr``: whether the network wants blue, green, red.
    """

    logarithms = False

    def __init__(self, network: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.size = options.get("size")
        self.bgr = bool(options.get("bgr"))

    def forward(self, images: Tensor) -> Tensor:
        output = self.network(pixel_values=self._prepared(images))
        return _resized(output["logits"], images.shape[-2:])

    def _prepared(self, images: Tensor) -> Tensor:
        """Return images as the network takes them."""
        if self.bgr:
            images = images.flip(1)
        if self.size is not None:
            images = _resized(images, self.size)
        return images


class QueryLogits(Logits):
    """Make logits ``ln(s + 1e-6)`` of the class scores s of a mask-classification network.

    Args:
        network: of transformers; its output has one pair of :data:`QUERIES`.
        options: as of :class:`Logits`; further ``mask_size`` (height, width), to which masks are
            resized before they become scores, and ``task_inputs``, the token numbers of
            OneFormer's task.
    """

    logarithms = True

    def __init__(self, network: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__(network, options)
        self.mask_size = options.get("mask_size")
        self.task_inputs = options.get("task_inputs")
        _put_frames_first(network)

    def forward(self, images: Tensor) -> Tensor:
        prepared = self._prepared(images)
        more: dict[str, Tensor] = {}
        if self.task_inputs is not None:
            task = torch.tensor([self.task_inputs], device=images.device, dtype=torch.float32)
            more["task_inputs"] = task.expand(len(images), -1)
        with _PlacesAsMasks():
            output = self.network(pixel_values=prepared, **more)
        classes_name, masks_name = next(names for names in QUERIES if names[1] in output)
        scores = class_scores(output[classes_name], output[masks_name], self.mask_size)
        return _resized(scores, images.shape[-2:]).add(LEAST_SCORE).log()


class _PlacesAsMasks(TorchFunctionMode):
    """Let ``values[torch.where(condition)] = 0`` of OneFormer be ``values[condition] = 0``.

    The result is the same. But ``torch.where`` returns numbers that depend on the values of the
    frame, so draws could run one at a time alone.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.where and len(args) == 1 and not kwargs:
            return (args[0],)
        return function(*args, **(kwargs or {}))


def _put_frames_first(network: nn.Module) -> None:
    """Let the LayerNorms of the decoders of Mask2Former and OneFormer see frames ``[N, Q, C]``.

    These decoders hold ``[Q, N, C]``. A batch of draws needs one draw for each entry of the first
    axis. A LayerNorm works on the last axis alone, so that its result is the same in both orders.
    """
    if not type(network).__name__.startswith(QUERIES_FIRST):
        return
    for name, module in network.named_modules():
        if isinstance(module, nn.LayerNorm) and "transformer_module.decoder." in name:
            module.register_forward_pre_hook(_swapped_input)
            module.register_forward_hook(_swapped_output)


def _swapped_input(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].transpose(0, 1),)


def _swapped_output(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.transpose(0, 1)


def class_scores(classes: Tensor, masks: Tensor, mask_size: Any = None) -> Tensor:
    """Return the scores of the classes at each pixel, at least 0.

    Args:
        classes: logits of the classes of each query ``[N, Q, C + 1]``; the last is "no object".
        masks: logits of the mask of each query ``[N, Q, h, w]``.
        mask_size: (height, width) to which the logits of masks are resized first; None for (h, w).

    Returns:
        ``[N, C, h, w]``, s_c = sum over q of softmax(class_q)_c * sigmoid(mask_q).
    """
    if masks.dtype in (torch.bfloat16, torch.float16):
        masks = masks.float()
        classes = classes.float()
    if mask_size is not None:
        masks = _resized(masks, mask_size)
    probabilities = classes.softmax(-1)[..., :-1].to(masks.dtype)
    if not torch.is_autocast_enabled(masks.device.type):
        return torch.einsum("nqc,nqhw->nchw", probabilities, masks.sigmoid())
    # Autocast would round the sum over queries to 16 bits, of which the logarithm shows the steps.
    with torch.autocast(masks.device.type, enabled=False):
        return torch.einsum("nqc,nqhw->nchw", probabilities, masks.sigmoid())


def _resized(values: Tensor, size: Any) -> Tensor:
    if values.shape[-2:] == torch.Size(size):
        return values
    return F.interpolate(values, tuple(size), mode="bilinear", align_corners=False)


def _library() -> Any:
    """Return the module ``transformers``; InputError where it is not installed."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        message = "hf: needs the package transformers, which is not installed"
        raise InputError(message, hint=INSTALL) from error


def _semantic_names() -> set[str]:
    """Return the classes of transformers with a semantic head."""
    _library()
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return set(auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES.values())


def _query_names() -> set[str]:
    """Return the classes of transformers that classify masks of one frame."""
    _library()
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    names = auto.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES.values()
    return {name for name in names if not name.startswith(NO_FRAMES)}


def names() -> list[str]:
    """Return the classes of the installed transformers that can be imported."""
    return sorted(_semantic_names() | _query_names())


def _class(name: str) -> Any:
    """Return a class of transformers; InputError where it does not segment frames."""
    library = _library()
    if name not in names():
        message = f"'{name}' of transformers {library.__version__} does not segment frames"
        raise InputError(message, hint=f"import one of {', '.join(names())}")
    return getattr(library, name)


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body with random weights (nothing is downloaded) and its stride, which is 1: the
    import has found by trial what sizes the network takes; see
    :mod:`segunc.networks.model_folder`.
    """
    architecture = _class(description.architecture)
    options = description.options
    if options.get("bgr"):
        description.check_colour(
            f"{description.architecture} with the order blue, green, red",
            hint="give mean and std three numbers each",
        )
    content = _own_keys(options.get("config", {}))
    _refuse_places(content, description.architecture)
    try:
        config = architecture.config_class.from_dict(content)
        config.num_labels = description.num_classes
        network = architecture._from_config(config)
    except Exception as error:  # what configurations and constructors raise has no common type
        if is_out_of_memory(error):
            raise
        version = _library().__version__
        message = (
            f"transformers {version} cannot build {description.architecture} ({one_line(error)})"
        )
        raise InputError(message, hint="import the network with this version again") from error
    return _body(network, options), 1


def _body(network: nn.Module, options: Mapping[str, Any]) -> Logits:
    if type(network).__name__ in _query_names():
        return QueryLogits(network, options)
    return Logits(network, options)


def _own_keys(config: Any) -> Any:
    """Return a configuration, at any depth, without keys that a model folder does not need or that
    name code which is not transformers' own; no pretrained backbone is fetched.
    """
    if isinstance(config, list | tuple):
        return [_own_keys(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if str(key).endswith(FOREIGN) or key in UNUSED:
            continue
        kept[key] = False if key == "use_pretrained_backbone" else _own_keys(value)
    return kept


def _refuse_places(config: Any, architecture: str) -> None:
    """Raise InputError where a configuration names a backbone by a place, such as a repository of
    the Hub, instead of describing it.
    """
    if isinstance(config, list):
        for item in config:
            _refuse_places(item, architecture)
    if not isinstance(config, dict):
        return
    described = config.get("backbone_config") is not None
    for key in ("backbone", "architecture"):
        name = config.get(key)
        if not isinstance(name, str):
            continue
        is_place = bool(set(name) & set(":/\\"))
        of_library = key == "backbone" and config.get("model_type") != "timm_backbone"
        if is_place or (of_library and not described):
            message = f"{architecture} has the {key} '{name}', a place instead of a description"
            raise InputError(message, hint="import the network with this version again")
    for value in config.values():
        _refuse_places(value, architecture)


def read(name: str, wishes: Wishes) -> Found:
    """Return a network from a folder that ``save_pretrained`` wrote, or from the Hugging Face Hub.

    Args:
        name: the folder, or ``owner/name`` of the Hub, or ``owner/name@revision``.
        wishes: what the user says comes before what the image processor of the network says.

    Raises:
        InputError: no such folder or repository, no connection, no right to read it, code of its
            own, a network that does not segment frames, or missing or damaged files.
    """
    library = _library()
    if wishes.arguments:
        message = f"hf:{name} takes no arguments: its configuration says how it is built"
        raise InputError(message, hint="leave --arguments out")
    folder, provenance = _folder_of(name, wishes.state is None)
    network, config = _network_of(name, folder, wishes.state is not None)
    architecture = type(network).__name__
    processor = _processor_of(name, folder)
    options = _options_of(name, folder, network, config, processor)
    description = wishes.description(
        KIND,
        architecture,
        classes=_classes_of(config),
        mean=processor.mean,
        std=processor.std,
        inference_size=processor.size,
        options=options,
        provenance={**provenance, "transformers": library.__version__},
    )
    state = None
    if wishes.state is None:
        state = {f"network.{key}": value for key, value in network.state_dict().items()}
    notes = tuple(_notes(architecture, processor, options.get("size"), wishes))
    return Found(description, state, notes)


def _network_of(name: str, folder: Path, without_weights: bool) -> tuple[nn.Module, Any]:
    """Return the network of a folder, in eval mode, and its configuration.

    Raises:
        InputError: code of its own, a network that does not segment frames, or missing or damaged
            files.
    """
    library = _library()
    content = read_json(folder / "config.json", "the configuration of a network of transformers")
    network_class = _class(_architecture_of(name, content))
    backbone = _backbone_elsewhere(content)
    config = None
    try:
        with _quiet(library):
            config = network_class.config_class.from_dict(
                {**_own_keys(content), **_labels_of(content)}
            )
            _leave_out_training(config)
            network = _with_weights(name, folder, network_class, config, without_weights)
    except InputError:
        raise
    except Exception as error:  # what configurations, files and constructors raise
        if is_out_of_memory(error):
            raise
        if config is None and backbone:
            message = (
                f"hf:{name} does not describe its backbone {backbone}, and its description could "
                f"not be read from the Hub ({type(error).__name__})"
            )
            hint = "import it once with a connection; the model folder then needs none"
            raise InputError(message, hint=hint) from error
        message = f"transformers {library.__version__} cannot read hf:{name} ({one_line(error)})"
        raise InputError(message, hint="download the network again") from error
    return network, config


def _backbone_elsewhere(content: Mapping[str, Any]) -> str:
    """Return the repository of a backbone that a configuration names and does not describe, as
    those of DETR once did; empty where it describes its backbone."""
    backbone = content.get("backbone")
    if content.get("backbone_config") is not None or not isinstance(backbone, str):
        return ""
    return backbone if "/" in backbone else ""


def _options_of(
    name: str, folder: Path, network: nn.Module, config: Any, processor: Processor
) -> dict[str, Any]:
    """Return the options of the description, from which :func:`build` makes the network again."""
    architecture = type(network).__name__
    kept = _own_keys(json.loads(json.dumps(config.to_dict(), default=str)))
    options: dict[str, Any] = {"config": kept}
    if processor.bgr:
        options["bgr"] = True
    if architecture.startswith("OneFormer"):
        options["task_inputs"] = _task_inputs(name, folder, config)
    size = _only_size(network, config, options)
    if size is not None:
        options["size"] = size
    if architecture in MASK_SIZES:
        options["mask_size"] = MASK_SIZES[architecture]
    elif architecture.startswith("Eomt") and size is not None:
        options["mask_size"] = size
    return options


def _folder_of(name: str, wants_weights: bool) -> tuple[Path, dict[str, str]]:
    """Return the folder with the files of a network, and where they come from."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder, {}
    if name.startswith((".", "~", "/")) or name.count("/") > 1:
        message = f"folder {name} does not exist"
        raise InputError(message, hint="hf:FOLDER of save_pretrained, or hf:OWNER/NAME of the Hub")
    return _downloaded(name, wants_weights)


def _downloaded(name: str, wants_weights: bool) -> tuple[Path, dict[str, str]]:
    """Return the folder of the Hub's cache with the files of a repository, and its commit.

    Only configurations, words of a tokenizer and weights are fetched, never code.
    """
    from huggingface_hub import snapshot_download

    from segunc.networks.hub_client import Repository, answers

    repo_id, _, revision = name.partition("@")
    repository = Repository(repo_id, revision or None)

    def fetch(patterns: tuple[str, ...]) -> Path:
        with answers(repository):
            path = snapshot_download(
                repo_id, revision=repository.revision, allow_patterns=list(patterns)
            )
        return Path(path)

    folder = fetch(FILES)
    if not (folder / "config.json").exists():
        message = f"{repository} on the Hub has no config.json, so that it holds no network"
        raise InputError(message, hint="name a repository of a network of transformers")
    if wants_weights:
        fetch(SAFE_WEIGHTS)
        if not _has_weights(folder, SAFE_WEIGHTS):
            fetch(OTHER_WEIGHTS)
    return folder, {"commit": folder.name}


def _has_weights(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(any(folder.glob(pattern)) for pattern in patterns)


def _architecture_of(name: str, content: Mapping[str, Any]) -> str:
    """Return the class that a configuration names.

    Raises:
        InputError: it names none, or asks for code of its own.
    """
    if "auto_map" in content:
        message = f"hf:{name} asks for code of its own (auto_map in config.json), which never runs"
        raise InputError(message, hint="write a function that builds it: segunc import python:...")
    architectures = content.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        message = f"config.json of hf:{name} does not say which network it is (architectures)"
        raise InputError(message, hint="save the network with save_pretrained")
    return str(architectures[0])


def _labels_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that hold its classes."""
    return {key: content[key] for key in ("id2label", "label2id") if key in content}


def _classes_of(config: Any) -> tuple[str, ...] | None:
    """Return the names of the classes in the order of the logits; None where transformers made
    them up.
    """
    classes = tuple(str(config.id2label[number]) for number in sorted(config.id2label))
    if all(label == f"LABEL_{number}" for number, label in enumerate(classes)):
        return None
    return classes


def _leave_out_training(config: Any) -> None:
    """Leave out what a network has for its training alone: an auxiliary head, and the encoder of
    texts of OneFormer.
    """
    if getattr(config, "use_auxiliary_head", False):
        config.use_auxiliary_head = False
    if getattr(config, "is_training", False):
        config.is_training = False


def _with_weights(
    name: str, folder: Path, network_class: Any, config: Any, without_weights: bool
) -> nn.Module:
    """Return a network with the weights of its folder, in eval mode.

    Raises:
        InputError: the folder holds no weights, or lacks some of them.
    """
    if without_weights:
        network: nn.Module = network_class._from_config(config)
        return network.eval()
    safe = _has_weights(folder, SAFE_WEIGHTS)
    if not safe and not _has_weights(folder, OTHER_WEIGHTS):
        message = f"hf:{name} holds no weights (model.safetensors)"
        raise InputError(message, hint="download them too, or give --weights FILE")
    network, info = network_class.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # they are counted below
        local_files_only=True,
        output_loading_info=True,
        trust_remote_code=False,
        use_safetensors=safe,
        weights_only=True,
    )
    missing = sorted([*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])])
    if missing:
        message = (
            f"hf:{name} lacks {len(missing)} weights of {network_class.__name__} "
            f"(e.g. {missing[0]})"
        )
        raise InputError(message, hint="take a network that was trained to segment")
    return network.eval()


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Keep transformers from printing progress and reports of weights."""
    logging = library.utils.logging
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


class Processor(NamedTuple):
    """What the image processor of a network says; None where it says nothing."""

    mean: tuple[float, ...] | None = None  # of images in 0..1
    std: tuple[float, ...] | None = None
    size: tuple[int, int] | None = None  # (height, width) of frames
    shorter_side: int | None = None  # pixels to which it resizes the shorter side
    bgr: bool = False
    reduces_labels: bool = False  # label 1 of the data set is class 0 of the network
    splits: bool = False  # it cuts a frame into square parts and joins their results


def _processor_of(name: str, folder: Path) -> Processor:
    """Return what the image processor in a folder says; nothing where there is none."""
    if not any((folder / file).exists() for file in FILES[1:3]):
        return Processor()
    library = _library()
    try:
        with _quiet(library):
            # Its file of classes is on the Hub, and serves training alone.
            processor = library.AutoImageProcessor.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True, class_info_file=None
            )
    except Exception as error:  # what processors raise has no common type
        message = f"the image processor of hf:{name} cannot be read ({one_line(error)})"
        raise InputError(message, hint="download preprocessor_config.json again") from error
    mean, std = _normalisation_of(processor)
    size: tuple[int, int] | None = None
    shorter_side = None
    if getattr(processor, "do_resize", True):
        size, shorter_side = _size_of(processor)
    return Processor(
        mean=mean,
        std=std,
        size=size,
        shorter_side=shorter_side,
        bgr=bool(getattr(processor, "do_flip_channel_order", False)),
        reduces_labels=bool(getattr(processor, "do_reduce_labels", False)),
        splits=bool(getattr(processor, "do_split_image", False)),
    )


def _normalisation_of(processor: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of images in 0..1. A processor may leave images in 0..255,
    or scale them otherwise.
    """
    mean = (0.0, 0.0, 0.0)
    std = (1.0, 1.0, 1.0)
    if getattr(processor, "do_normalize", False):
        mean = tuple(processor.image_mean)
        std = tuple(processor.image_std)
    scale = 255.0
    if getattr(processor, "do_rescale", True):
        scale *= processor.rescale_factor
    if math.isclose(scale, 1.0):
        return mean, std
    return tuple(value / scale for value in mean), tuple(value / scale for value in std)


def _size_of(processor: Any) -> tuple[tuple[int, int] | None, int | None]:
    """Return the (height, width) to which a processor resizes frames, or else the pixels of their
    shorter side.
    """
    size = dict(getattr(processor, "size", None) or {})
    if getattr(processor, "do_center_crop", False):
        size = dict(getattr(processor, "crop_size", None) or size)
    if size.get("height") and size.get("width"):
        return (int(size["height"]), int(size["width"])), None
    shorter = size.get("shortest_edge")
    longer = size.get("longest_edge")
    # 1024 and 2048 of Cityscapes are a size; 640 and 2560 of ADE20K bound frames of any ratio.
    if shorter and longer and shorter <= longer <= 2 * shorter:
        return (int(shorter), int(longer)), None
    return None, int(shorter) if shorter else None


def _task_inputs(name: str, folder: Path, config: Any) -> list[int]:
    """Return the token numbers of :data:`TASK`, with zeros behind them."""
    length = int(config.task_seq_len)
    words = ""
    tokens: Any = {}
    if any((folder / file).exists() for file in ("tokenizer.json", "vocab.json")):
        try:
            tokenizer = _library().CLIPTokenizer.from_pretrained(folder, local_files_only=True)
            tokens = tokenizer(TASK, padding="max_length", max_length=length, truncation=True)
            words = tokenizer.decode(tokens["input_ids"], skip_special_tokens=True).strip()
        except Exception as error:  # a damaged file raises whatever it meets first
            message = f"the tokenizer of hf:{name} cannot be read ({one_line(error)})"
            raise InputError(message, hint="download vocab.json and merges.txt again") from error
    if words != TASK:
        message = f"hf:{name} has no tokenizer with the words '{TASK}', which OneFormer is told"
        raise InputError(message, hint="download vocab.json and merges.txt, too")
    pairs = zip(tokens["input_ids"], tokens["attention_mask"], strict=True)
    return [int(number) * int(mask) for number, mask in pairs]


@torch.no_grad()
def _only_size(network: nn.Module, config: Any, options: Mapping[str, Any]) -> list[int] | None:
    """Return the (height, width) of a network's configuration where it fails on all others."""
    body = _body(network, options)
    channels = next(_values_of(config.to_dict(), "num_channels"), COLOUR)
    for size in PROBES:
        try:
            body(torch.zeros(1, channels, *size, dtype=torch.float32))
        except Exception:  # shapes that do not fit raise whatever they meet first
            continue
        return None
    image_size = next(_values_of(config.to_dict(), "image_size"), None)
    if image_size is None:
        return None
    return [image_size, image_size] if isinstance(image_size, int) else list(image_size)


def _values_of(config: Any, name: str) -> Iterator[Any]:
    """Yield the values of a key of a configuration, the outermost first."""
    if not isinstance(config, dict):
        return
    if config.get(name) is not None:
        yield config[name]
    for value in config.values():
        yield from _values_of(value, name)


def _notes(
    architecture: str, processor: Processor, size: list[int] | None, wishes: Wishes
) -> Iterator[str]:
    """Yield what a user should know of a network, and what was assumed of it."""
    if architecture in _query_names():
        yield (
            "the network classifies masks: its logits are ln of the class scores, and `rba` "
            "reads these scores"
        )
    if size is not None:
        yield (
            f"the network takes frames of {size[0]} x {size[1]} alone: every frame is resized to "
            "that, whatever its aspect ratio"
        )
    if processor.splits:
        yield (
            "its image processor cuts frames into square parts; here the network sees the whole "
            "frame at once, which can change its result"
        )
    if processor.reduces_labels and wishes.classes is None:
        yield (
            "its training shifted labels by one (do_reduce_labels): value 1 of its label files is "
            "class 0 here"
        )
    if processor.shorter_side is not None and wishes.inference_size is None and size is None:
        yield (
            f"its image processor resizes the shorter side of frames to {processor.shorter_side} "
            "pixels"
        )
