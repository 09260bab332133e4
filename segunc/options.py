"""What can be asked of each verb: one dataclass a verb, from which the command line makes its options and their help.

The types say the bounds of numbers, and the dataclasses check themselves. Nothing here imports more than the standard library.
"""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, get_type_hints, overload

from segunc.core.bounds import (
    Bits,
    Count,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Side,
    Threads,
    check_value,
)
from segunc.core.errors import InputError
from segunc.core.files import check_place, read_rows

Value = TypeVar("Value")
Asked = ParamSpec("Asked")
More = ParamSpec("More")
Given = TypeVar("Given", contravariant=True)
Result = TypeVar("Result", covariant=True)
PathLike = str | Path
Size = tuple[Side, Side]  # (height, width)


class Verb(Protocol[Asked, Given, More, Result]):
    """A verb as a function of its options, or of one object that holds them."""

    @overload
    def __call__(self, options: Given, /, *more: More.args, **further: More.kwargs) -> Result: ...
    @overload
    def __call__(self, *asked: Asked.args, **further: Asked.kwargs) -> Result: ...


def takes(
    options: Callable[Asked, Given],
) -> Callable[[Callable[Concatenate[Given, More], Result]], Verb[Asked, Given, More, Result]]:
    """Let a verb's function take the fields of its options as well: ``predict("runs/abnn", "drive.mp4", out="maps")``."""

    def decorate(function: Callable[Concatenate[Given, More], Result]) -> Verb[Asked, Given, More, Result]:
        @wraps(function)
        def verb(*asked: Any, **further: Any) -> Any:
            if asked and isinstance(asked[0], cast(type, options)):
                return function(*asked, **further)
            return cast(Any, function)(options(*asked, **further))

        return cast(Verb[Asked, Given, More, Result], verb)

    return decorate


def several(given: PathLike | Sequence[PathLike]) -> Sequence[PathLike]:
    """One path or several, as several."""
    return [given] if isinstance(given, str | Path) else given


def option(help: str, default: Any = ..., *, kw_only: Any = MISSING, **settings: Any) -> Any:
    """A field with what the command line says about it; required where it has no default.

    ``settings`` are arguments of argparse's ``add_argument``, beside those that follow from the field's name, type and default (a
    ``Literal`` gives the choices, a bool a flag); and ``flags``, the names on the command line where they are others, ``exclusive``, True
    for those of which exactly one is required, and ``choices_of``, the table (``module:name``) whose names are the choices.
    """
    metadata = {"help": help, **settings}
    if default is ...:
        return field(metadata=metadata, kw_only=kw_only)
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=metadata, kw_only=kw_only)
    return field(default=default, metadata=metadata, kw_only=kw_only)


def comma_list(text: str) -> list[str]:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def listed(help: str, default: Any = None, **settings: Any) -> Any:
    """An :func:`option` of several words, ``A,B``."""
    return option(help, default, metavar="A,B", type=comma_list, **settings)


def whole_numbers(text: str) -> list[int]:
    """``0,1,2`` as a list."""
    parts = comma_list(text)
    if not parts or not all(part.isdigit() for part in parts):
        raise ArgumentTypeError(f"'{text}' is not a list of whole numbers, e.g. 0,1,2,3")
    return [int(part) for part in parts]


def image_size(text: str) -> Size:
    """``HxW`` as (height, width)."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.isdigit() and int(p) > 0 for p in parts):
        raise ArgumentTypeError(f"'{text}' is not HxW, e.g. 512x1024")
    return int(parts[0]), int(parts[1])


def by_name(parts: str | Iterable[Sequence[str]], read: Callable[[str], Value], form: str) -> dict[str, Value]:
    """``a=X,b=Y``, or its pairs, as a dictionary; ``form`` is for the message."""
    found: dict[str, Value] = {}
    for part in (word.split("=", 1) for word in comma_list(parts)) if isinstance(parts, str) else parts:
        try:
            name, value = part
            read_value = read(value)
        except ValueError:
            raise ArgumentTypeError(f"'{'='.join(part)}' is not {form}") from None
        if name.strip() in found:
            raise ArgumentTypeError(f"'{name.strip()}' is given twice")
        found[name.strip()] = read_value
    return found


def colour_triple(text: str) -> tuple[float, float, float]:
    """``R,G,B`` as three numbers."""
    try:
        red, green, blue = map(float, text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not R,G,B, e.g. 0.485,0.456,0.406") from None
    return red, green, blue


def arguments(text: str) -> dict[str, Any]:
    """``a=1,b="x"`` with values in JSON, or one JSON object, as a dictionary."""
    if not text.startswith("{"):
        return by_name(text, json.loads, "NAME=JSON, e.g. width=32")
    try:
        return dict(json.loads(text))
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is no JSON object") from None


def thresholds(text: str) -> dict[str, float]:
    """``a=0.5,b=0.1`` as a dictionary."""
    return by_name(text, float, "SCORE=VALUE, e.g. entropy=0.5")


def score_ranges(text: str) -> dict[str, tuple[float, float]]:
    """``a=0:0.5,b=-8:0`` as a dictionary."""

    def ends(range: str) -> tuple[float, float]:
        low, high = map(float, range.split(":"))
        return low, high

    return by_name(text, ends, "SCORE=LOW:HIGH, e.g. epistemic=0:0.05")


def named_pairs(text: str, columns: str, form: str) -> dict[str, str]:
    """``a=b,c=d`` as a dictionary, or the same of a CSV file with these two columns; names without spaces around them."""

    def name(value: str) -> str:
        if not value.strip():
            raise ValueError
        return value.strip()

    parts: str | list[list[str]] = text
    if text.endswith(".csv"):
        try:
            header, *parts = read_rows(Path(text)) or [[]]
        except (OSError, ValueError) as error:
            raise ArgumentTypeError(f"{text} cannot be read as CSV ({error})") from None
        if ",".join(header) != columns:
            raise ArgumentTypeError(f"the first line of {text} is '{','.join(header)[:80]}'; expected {columns}")
    pairs = by_name(parts, name, form)
    if not pairs:
        raise ArgumentTypeError(f"'{text}' names nothing; expected {form}")
    return pairs


def class_pairs(text: str) -> dict[str, str]:
    """``road=road,sidewalk=pavement`` as a dictionary, or the same of a CSV file with the columns ``network,dataset``."""
    return named_pairs(text, "network,dataset", "NETWORK_CLASS=DATASET_CLASS, e.g. sidewalk=pavement")


def frame_groups(text: str) -> str | dict[str, str]:
    """A regular expression as it is, or the group of each frame of a CSV file with the columns ``frame,group``."""
    return named_pairs(text, "frame,group", "FRAME,GROUP") if text.endswith(".csv") else text


BITS = "bits that 16-bit images use, of 12 for instance the highest value is 4095 (default 16)"
GROUPS = {
    "input": "source weights weights_key trust base config method model maps results input images image all_images frames every start end "
    "shard mask names metrics verdicts compare",
    "labels and data": "labels anomaly_labels dataset root split label_map map_classes anomaly_class corruption",
    "the network and what it sees": "classes drop_classes mean std arguments size bits smooth tile overlap",
    "draws": "draws seed seeds alpha scheme scope redraw",
    "scores": "scores score overlay_score component_threshold nearest statistic label_score top apart keys baseline",
    "what is measured": "protocols components component_mode by sizes groups flag flag_region replicates resample",
    "speed": "device precision compile chunk frames_at_once threads engine workers shards ray_address",
    "output": "out to compact exact panel overlay ranges format theme no_caption video fps anomaly_only limit plots logger verify repair overwrite",
}
"""Titles under which every verb's help shows its options, by the names of their fields."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the options of all verbs promise: InputError for a number out of its bounds, NaN, a text that can be no name, or a place for
    the output that is taken by something of another kind."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for one in fields(self):
            flag = next(iter(one.metadata.get("flags", ())), f"--{one.name.replace('_', '-')}")
            value, hint = getattr(self, one.name), hints[one.name]
            check_value(flag, value, hint, "see --help")
            if Path in get_args(hint) and "" in (value if isinstance(value, list | tuple) else [value]):
                raise InputError(f"{flag} ''", "a path", ". is the current folder")
            if one.name in ("out", "plots") and value and one.metadata["metavar"] != "PATH":  # else of either kind
                try:
                    check_place(Path(value), folder=one.metadata["metavar"] == "DIR")
                except InputError as error:
                    raise InputError(f"{flag} {error.given}", error.expected, f"give another {flag}") from error


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where a verb computes."""

    device: str = option("where to compute (default auto)", "auto", metavar="auto|cpu|cuda[:N]")


@dataclass(frozen=True, kw_only=True)
class LoggerOptions:
    """Where numbers are written beside the folder of a run."""

    logger: Literal["tensorboard", "wandb", "mlflow"] | None = option(
        "also log the numbers there; its own environment variables say where to, and whether offline", None
    )


@dataclass(frozen=True, kw_only=True)
class TrustOptions:
    """Whether code may be run that a configuration names."""

    trust: bool = option(
        "run the callbacks and loggers of your own that the configuration names, now and later on this machine", False
    )


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """What the values of class labels mean."""

    label_map: str | None = option(
        "what class labels mean, in place of the data set's own: cityscapes, camvid, ... or a CSV",
        None,
        metavar="NAME|CSV",
    )


@dataclass(frozen=True, kw_only=True)
class MappedLabelOptions(LabelOptions):
    """What the values of class labels mean to a network that knows other classes."""

    map_classes: Mapping[str, str] = option(
        "classes of the network that are classes of the data set, where the two differ: pairs, or a CSV with the columns "
        "network,dataset. Several may be one. The data set's other classes are ignored; the network's others are errors "
        "where they are predicted",
        {},
        metavar="A=B,C=D|CSV",
        type=class_pairs,
    )


@dataclass(frozen=True, kw_only=True)
class TruthOptions:
    """The labels of frames whose maps lie on disk: folders of them, or those of a data set."""

    anomaly_labels: PathLike | None = option(
        "anomaly masks of the frames in --maps: 0 normal, 1 anomaly, 255 ignored, or as --dataset has them",
        None,
        metavar="DIR",
    )
    dataset: str | None = option(
        "data set: what the values of its labels mean, and with --root its frames", None, metavar="NAME"
    )
    root: PathLike | None = option("where the data set lies; with --maps instead of label folders", None, metavar="DIR")
    split: str = option(
        "of the data set (default test); selection: the frames that hyper-parameters are selected on", "test"
    )
    anomaly_class: Sequence[str] = listed(
        "classes of the data set that the network was not trained on: anomalies (may be repeated)", [], action="extend"
    )


@dataclass(frozen=True, kw_only=True)
class ClassTruthOptions(TruthOptions, LabelOptions):
    """The same with class labels."""

    labels: PathLike | None = option(
        "class labels of the frames in --maps (needs --dataset or --label-map)", None, metavar="DIR"
    )


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(DeviceOptions):
    """Draws, their noise and the network's size and precision."""

    draws: Count = option("networks that are drawn (default 24)", 24, metavar="S")
    seed: Seed = option("of the draws (default 0)", 0)
    alpha: NonNegativeFloat | None = option("noise scale of an ABNN in place of its own", None, metavar="A")
    scheme: Literal["independent", "antithetic", "latin-hypercube"] | None = option(
        "how the draws of a member are spread (default latin-hypercube)", None
    )
    scope: str | None = option(
        "sample fewer norm sites: all, encoder, decoder, last:N, every:N or a pattern", None, metavar="SCOPE"
    )
    size: Size | None = option(
        "size the network sees; maps keep the frame's own size", None, metavar="HxW", type=image_size
    )
    chunk: Count | None = option("draws in a batch (default: by memory)", None, metavar="N")
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "of the network (default: bfloat16 where the hardware makes it fast for this network)", "auto"
    )
    threads: Threads | None = option("CPU threads of the network (default: all cores)", None, metavar="N")
    compile: Literal["auto", "on", "off"] = option(
        "torch.compile the draws: a tenth faster after seconds of compiling for each size of frame (default auto: where the "
        "whole input is long enough)",
        "auto",
        nargs="?",
        const="on",
    )


@dataclass(frozen=True)
class DemoOptions(DeviceOptions):
    """The whole job on toy road scenes."""

    out: PathLike = option("folder for data, models, maps and pages", metavar="DIR")
    seed: Seed = option("of the scenes and the training (default 0)", 0)


Settings = Mapping[str, Any] | Sequence[str]
"""Keys of a configuration to overrule, ``{"trainer.max_epochs": 3}``, or the same in the words of the command line."""


@dataclass(frozen=True)
class TrainOptions(DeviceOptions, LabelOptions, LoggerOptions, TrustOptions):
    """A deterministic network; ``settings`` overrule keys of the configuration."""

    config: PathLike = option("see configs/; any key can be overruled as --key.subkey VALUE", metavar="YAML")
    out: PathLike = option("the model folder; the same command continues a killed run", metavar="DIR")
    seeds: Sequence[Seed] | None = option(
        "train one network for each seed, into DIR/seed-A and so on: the members of an ensemble",
        None,
        metavar="A,B",
        type=whole_numbers,
    )
    settings: Settings = ()


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """A network that others trained, as a model folder."""

    source: str = option(
        "smp:DIR_OR_HUB_ID, torchvision:NAME, transformers:DIR_OR_HUB_ID or python:package.module:function",
        metavar="SOURCE:NAME",
        flags=("source",),
    )
    out: PathLike = option("the model folder", metavar="DIR")
    weights: PathLike | None = option("a file with the state dict, where the source holds none", None, metavar="FILE")
    weights_key: str | None = option(
        "where in the file the weights are, if several sets of it fit the network: a key or the beginning of the names, such as "
        "state_dict_ema",
        None,
        metavar="KEY",
    )
    classes: str | None = option(
        "a label map (cityscapes, ...), a CSV of one, or the names of the classes in the order of the logits",
        None,
        flags=("--classes", "--label-map"),
        metavar="NAME|CSV|A,B,...",
    )
    drop_classes: str | None = option(
        "outputs of the network that are no class, such as void: names of --classes, or numbers from 0 of outputs that --classes does "
        "not name",
        None,
        metavar="A,B,...",
    )
    mean: tuple[float, float, float] | None = option(
        "mean of the input normalisation, of images in 0..1", None, metavar="R,G,B", type=colour_triple
    )
    std: tuple[float, float, float] | None = option(
        "standard deviation of the input normalisation", None, metavar="R,G,B", type=colour_triple
    )
    size: Size | None = option("size of frames that the network was made for", None, metavar="HxW", type=image_size)
    arguments: Mapping[str, Any] = option(
        "for the network's factory, values in JSON", {}, metavar="NAME=VALUE,...", type=arguments
    )
    trust: bool = option("run the code of a python: network, now and when it is loaded on this machine", False)


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(DeviceOptions, LabelOptions, LoggerOptions, TrustOptions):
    """A posterior over a trained network; ``settings`` overrule keys of the configuration, or stand for it."""

    base: PathLike | Sequence[PathLike] = option(
        "model folder; abnn takes a deterministic network, ensemble several folders or one of several seeds",
        metavar="DIR",
        nargs="+",
    )
    config: PathLike | None = option(
        "see configs/; any key can be overruled as --key.subkey VALUE. ensemble takes none; none, and no data, is needed for tta and for abnn "
        "with --abnn.statistics frozen",
        None,
        metavar="YAML",
    )
    out: PathLike = option("the new model folder", metavar="DIR")
    method: str = option(
        "which posterior (default abnn), or what is fitted on a finished model",
        "abnn",
        choices_of="segunc.posteriors.methods:METHODS",
    )
    settings: Settings = ()
    data: Any = None
    """Loaders of your own in place of a data set, a :class:`segunc.OwnData`; then no configuration is needed."""


@dataclass(frozen=True)
class PredictOptions(SamplingOptions):
    """Maps of images, folders, globs or videos."""

    model: PathLike = option("model folder", metavar="DIR")
    input: PathLike | Sequence[PathLike] = option(
        "images, folders, glob patterns or videos; of several, each has a sub-folder of --out",
        metavar="PATH",
        nargs="+",
    )
    out: PathLike = option("the maps folder; the same command continues a killed run", metavar="DIR")
    compact: bool = option(
        "maps of half the frame's height and width, scores in 0..1 as 8-bit codes: about a tenth of the bytes; every verb reads them "
        "at the frame's size",
        False,
    )
    overlay: bool = option("also write overlays, and a video of them for a video", False)
    overlay_score: str | None = option(
        "the score that overlays show (default: anomaly where it is written, else entropy)", None, metavar="SCORE"
    )
    no_caption: bool = option("overlays without the frame's name and, of a video, its moment", False)
    scores: Sequence[str] | None = listed(
        "scores to write (default: those that need no statistics, and anomaly if fitted)", flags=("--scores", "--maps")
    )
    every: PositiveInt = option("take every N-th frame (default 1)", 1, metavar="N")
    start: str | None = option("first moment of a video, in seconds or as HH:MM:SS", None, metavar="TIME")
    end: str | None = option("moment of a video to stop before", None, metavar="TIME")
    shard: str | None = option(
        "only part I of N of the frames; all N share --out, at once or one by one", None, metavar="I/N"
    )
    frames_at_once: Count | None = option(
        "consecutive frames of one size in a batch (default: by their size; one on a CPU)", None, metavar="N"
    )
    smooth: PositiveFloat | None = option(
        "average probabilities along the video with this time constant, in seconds (images: in frames); epistemic then also "
        "holds how much successive frames disagree",
        None,
        metavar="TAU",
    )
    tile: Size | None = option(
        "cut frames into tiles of this size, blended without seams", None, metavar="HxW", type=image_size
    )
    overlap: NonNegativeInt | None = option(
        "pixels that neighbouring tiles share (default a quarter of a tile)", None, metavar="N"
    )
    redraw: bool = option(
        "new draws for every frame (default: the same for all, so that the maps of a video do not flicker)", False
    )
    nearest: bool = option(
        "also write what of the training frames each place is most like (with knn, or an anomaly made of it, among the scores), for review and "
        "overlay --panel",
        False,
    )
    mask: PathLike | None = option(
        "region of interest: where it is black (the vehicle itself, say), maps are 0 and statistics see nothing",
        None,
        metavar="PNG",
    )
    component_threshold: Mapping[str, float] = option(
        "values from which on pixels form a component in the statistics (default entropy=0.5,epistemic=0.1,...)",
        {},
        metavar="A=X,B=Y",
        type=thresholds,
    )
    engine: Literal["local", "ray"] = option(
        "local: this process; ray: workers on this machine or a cluster (extra 'ray'), the same files (default local)",
        "local",
    )
    workers: Count | None = option(
        "processes of --engine ray (default: one for every GPU, or for every 4 CPU cores, of this machine)",
        None,
        metavar="N",
    )
    shards: Count | None = option(
        "parts that --engine ray cuts an input into (default: 4 a worker; of videos, each decoded whole, 1 a worker)",
        None,
        metavar="N",
    )
    ray_address: str | None = option(
        "a running cluster: auto, or HOST:PORT (default: start one on this machine)", None, metavar="ADDRESS"
    )
    bits: Bits | None = option(BITS, None, metavar="N")
    all_images: bool = option("take every image of a folder as a frame, those that look like labels, too", False)
    verify: bool = option(
        "read the maps of finished frames and make those again that are not what was written (default: compare their sizes)",
        False,
    )
    overwrite: bool = option("start the maps folder anew", False)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(SamplingOptions, ClassTruthOptions, MappedLabelOptions, LoggerOptions):
    """Metrics from maps on disk, or from a model in one pass."""

    maps: PathLike | None = option(
        "a folder of score maps (png, tif, npy, hdf5) of segunc or any other tool",
        None,
        kw_only=False,
        metavar="DIR",
        exclusive=True,
    )
    model: PathLike | None = option(
        "a model folder: predict and score in one pass, write only the result", None, metavar="DIR", exclusive=True
    )
    verdicts: Sequence[PathLike] | None = option(
        "reviewers' verdicts on --maps, exported by their pages (.json or .csv), in place of labels: how many alarms are true, "
        "what was missed",
        None,
        metavar="FILE",
        nargs="+",
    )
    out: PathLike | None = option("file of the result (default: only printed)", None, metavar="JSON")
    frames: str | None = option(
        "only the split's frames whose names match this regular expression", None, metavar="PATTERN"
    )
    every: PositiveInt = option("of these, every N-th (default 1)", 1, metavar="N")
    scores: Sequence[str] | None = listed(
        "scores to evaluate (default: all maps; with --model those that predict writes by default)"
    )
    corruption: str | None = option(
        "corrupt the images first: blur, noise, fog, darkness or jpeg, of strength 1 to 5, e.g. fog:3; with --model",
        None,
        metavar="NAME:N",
    )
    bits: Bits | None = option(f"{BITS}; with --model", None, metavar="N")
    protocols: Sequence[Literal["pooled", "per-image", "smiyc"]] = listed(
        "how anomaly pixels are pooled: pooled, per-image, smiyc (default pooled,per-image)", ["pooled", "per-image"]
    )
    components: Sequence[str] | None = listed(
        "component tracks smiyc-anomaly, smiyc-obstacle: anomalies as objects, in a second pass"
    )
    component_mode: Literal["smiyc", "inclusive"] = option(
        "score > threshold as the benchmark cuts (default), or >=", "smiyc"
    )
    by: Sequence[str] = listed(
        "anomaly numbers also by size of the connected objects, or by distance, the place of their lowest pixel in the "
        "frame's height: size, distance, or none (default size)",
        ["size"],
    )
    sizes: Sequence[str] = listed(
        "edges between sizes of objects, in pixels or as shares of the frame, e.g. 0.05%%,0.5%%,5%% (default "
        "100,500,2500,10000,50000)",
        [],
    )
    groups: str | Mapping[str, str] | None = option(
        "anomaly numbers also by groups of frames: what a regular expression finds in their names (its first group, where it "
        "has one), or a CSV with the columns frame,group; frames without one are the group other",
        None,
        metavar="PATTERN|CSV",
        type=frame_groups,
    )
    flag: Sequence[str] = option(
        "also what thresholds flag: false alarms by class, precision and recall; SCORE=VALUE, or an earlier result, whose "
        "scores all have one for a recall of 0.8 (default) and 0.95 (may be repeated)",
        [],
        metavar="SCORE=VALUE|JSON[:RECALL]",
        type=comma_list,
        action="extend",
    )
    flag_region: NonNegativeInt = option("pixels from which on a flagged region counts (default 50)", 50, metavar="N")
    replicates: NonNegativeInt = option("of the bootstrap intervals (default 2000; 0: none)", 2000, metavar="R")
    resample: str = option(
        "what is resampled: frame (default), folder, or a regular expression; frames with one match stay together. REGEX@N: "
        "blocks of N of the number that its last group finds, e.g. '^(Seq05VD)_f(\\d+)@300'; 10s: blocks of 10 s of a video",
        "frame",
        metavar="UNIT",
    )
    plots: PathLike | None = option(
        "folder for figures (PDF, SVG, PNG) and the points of their curves (curves.json)", None, metavar="DIR"
    )


@dataclass(frozen=True)
class ReviewOptions(DeviceOptions, ClassTruthOptions):
    """A page on which people look at the maps and judge them; reads their verdicts back."""

    maps: PathLike = option(
        "a maps folder, of segunc or any other tool, or the folder of several of one model", metavar="DIR"
    )
    compare: PathLike | None = option("maps of a second model on the same frames", None, metavar="DIR")
    images: str | None = option("the source images, where they are no longer at their place", None, metavar="PATH")
    metrics: PathLike | None = option("a result of evaluate to show", None, metavar="JSON")
    scores: Sequence[str] | None = listed(
        "scores that the page carries, or all (default: the first of anomaly and entropy, entropy and epistemic)"
    )
    exact: bool = option(
        "carry the maps whole, with the exact value of each pixel (default: at most 960 pixels wide, in 255 steps)",
        False,
    )
    apart: NonNegativeFloat = option(
        "between two moments, of which the gallery shows one each (default 5)", 5.0, metavar="SECONDS"
    )
    fps: PositiveFloat | None = option(
        "frames a second of images that are a video, in their order; else pictures that look alike are one moment", None
    )
    limit: PositiveInt | None = option(
        "carry only the N frames of the highest mean anomaly, else entropy", None, metavar="N"
    )
    verdicts: Sequence[PathLike] | None = option(
        "check, merge and count verdicts that pages exported (.json or .csv), with the agreement of the reviewers; with "
        "--out the page shows them",
        None,
        flags=("--import",),
        metavar="FILE",
        nargs="+",
    )
    out: PathLike | None = option("folder of the page", None, metavar="DIR")


@dataclass(frozen=True)
class SummaryOptions(DeviceOptions):
    """The worst moments of maps on disk, and frames ranked for labelling."""

    maps: PathLike = option("a maps folder, or the folder of several", metavar="DIR")
    score: str | None = option("score of the worst moments (default anomaly if there, else entropy)", None)
    statistic: Literal["mean", "p99", "max", "component"] = option(
        "of each frame: mean, 99th percentile, maximum or largest component above the threshold (default mean)", "mean"
    )
    label_score: str | None = option(
        "score whose mean ranks frames (default epistemic if there, else that of the worst moments)", None
    )
    top: PositiveInt = option("moments and frames to list (default 10)", 10, metavar="N")
    apart: NonNegativeFloat = option("between two moments of a video (default 5)", 5.0, metavar="SECONDS")
    fps: PositiveFloat | None = option(
        "frames a second of images that are a video, in their order; else pictures that look alike are one moment", None
    )
    out: PathLike | None = option("also write both lists as a table", None, metavar="CSV")


@dataclass(frozen=True)
class OverlayOptions(DeviceOptions, TruthOptions):
    """Pictures and videos of maps on disk, for print."""

    maps: PathLike = option("a maps folder, of segunc or any other tool", metavar="DIR")
    out: PathLike = option("folder of the pictures, outside of the maps", metavar="DIR")
    score: Sequence[str] | None = listed(
        "scores to draw (default anomaly, or else entropy; with --panel with epistemic, and without anomaly also aleatoric)"
    )
    panel: bool = option(
        "one picture a frame: image, prediction, class legend and every score side by side (default: each score over the "
        "image)",
        False,
    )
    frames: Sequence[str] | None = listed("names or patterns of frames, e.g. 000120,night/* (default: all)")
    images: str | None = option("the source images, where they are no longer at their place", None, metavar="PATH")
    ranges: Mapping[str, tuple[float, float]] = option(
        "ranges of the colours (default: fixed for scores in 0..1, of the whole set for unbounded ones)",
        {},
        flags=("--range",),
        metavar="A=LOW:HIGH,B=LOW:HIGH",
        type=score_ranges,
    )
    flag: Mapping[str, float] = option(
        "values from which on pixels of a score are outlined, and named as flagged",
        {},
        metavar="A=X,B=Y",
        type=thresholds,
    )
    no_caption: bool = option("leave out the frame's name and, of a video, its moment", False)
    theme: Literal["dark", "light"] = option(
        "of captions and legends: dark for screens (default), light for print", "dark"
    )
    format: Literal["png", "jpg", "pdf"] = option(
        "png and pdf are lossless, pdf is 300 dots an inch with text and legends as such (default png)", "png"
    )
    video: bool = option(
        "also a video of the pictures: MP4 (H.264) where PyAV has an encoder of it, else WebM (VP8)", False
    )
    fps: PositiveFloat | None = option("frames a second of the video (default: as recorded)", None, metavar="N")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(DeviceOptions):
    """Score maps in the files of a public benchmark."""

    maps: PathLike = option("a maps folder, of segunc or any other tool", metavar="DIR")
    score: str = option("the score to export, e.g. entropy", metavar="SCORE")
    to: Literal["smiyc", "fishyscapes"] = option(
        "smiyc: anomaly_p/METHOD/DATASET/FRAME.hdf5, float16; fishyscapes: DDDD_anomaly.npy, float32, and "
        "DDDD_segmentation.npy, int32 Cityscapes train ids"
    )
    method: str = option("name of the method (smiyc needs it)", "", metavar="NAME")
    anomaly_only: bool = option("fishyscapes without DDDD_segmentation.npy, which its mIoU is computed from", False)
    dataset: str = option("the benchmark's name of the data set (smiyc needs it)", "", metavar="NAME")
    out: PathLike = option("output folder; the same command after a kill loses nothing", metavar="PATH")
    overwrite: bool = option("remove an earlier export at the same place first", False)


@dataclass(frozen=True)
class CompareOptions(DeviceOptions):
    """Results side by side."""

    results: Sequence[PathLike] = option("results of evaluate", flags=("results",), metavar="JSON", nargs="+")
    out: PathLike | None = option("also write the tables: .md (Markdown) or .csv", None, metavar="FILE")
    names: Sequence[str] | None = listed("names of the results (default: the files' names)")
    scores: Sequence[str] | None = listed(
        "compare these scores, of one result or of several; RESULT:SCORE takes that of one, e.g. base:msp,abnn:entropy"
    )
    keys: Sequence[str] | None = listed("numbers to show, as dotted paths with wildcards: '*.pooled.*,*.miou'")
    baseline: str | None = option(
        "column, or its file, that differences refer to (default: the first)", None, metavar="NAME"
    )


@dataclass(frozen=True)
class DoctorOptions(SamplingOptions, MappedLabelOptions):
    """Is the uncertainty of a model alive, and its conversion sound? Are the maps of a folder what was written?"""

    model: PathLike | None = option("model folder", None, metavar="DIR", exclusive=True)
    maps: PathLike | None = option(
        "maps folder, or the folder of several: every file is compared with the checksum of its log",
        None,
        metavar="DIR",
        exclusive=True,
    )
    repair: bool = option("of --maps, make what is damaged again, by the command that the manifest records", False)
    image: PathLike | None = option("a clean frame (default: a toy road scene)", None, metavar="FILE")
    dataset: str | None = option("data set for the calibration check", None, metavar="NAME")
    root: PathLike | None = option("where it lies", None, metavar="DIR")
    split: str = option("of the data set (default val)", "val")
    frames: PositiveInt = option("labelled frames of the calibration check (default 8)", 8, metavar="N")
