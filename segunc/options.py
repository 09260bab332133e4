"""The options of each verb: one dataclass a verb, from which the command line makes its options and
their help.

The types say the bounds of numbers and what reads a word; the dataclasses check themselves.
Docstrings say what the options mean, and in parentheses how the help writes a value. This module
imports the standard library alone, so that help appears at once.
"""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial, wraps
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    overload,
)

from segunc.core.bounds import (
    Bound,
    Count,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    Side,
    Threads,
    UnitInterval,
    check_value,
    meanings,
)
from segunc.core.errors import InputError
from segunc.core.files import check_place, read_rows

Value = TypeVar("Value")
Asked = ParamSpec("Asked")
Result = TypeVar("Result", covariant=True)
PathLike = str | Path


class Verb(Protocol[Asked, Result]):
    """A verb as a function of the fields of its options, or of one object that holds them."""

    @overload
    def __call__(self, options: Options, /) -> Result: ...
    @overload
    def __call__(self, *asked: Asked.args, **further: Asked.kwargs) -> Result: ...


def takes(options: Callable[Asked, Any]) -> Callable[[Callable[..., Result]], Verb[Asked, Result]]:
    """Let a verb's function take the fields of its options as well: ``predict("runs/abnn",
    "drive.mp4", out="maps")``.
    """

    def decorate(function: Callable[..., Result]) -> Verb[Asked, Result]:
        @wraps(function)
        def verb(*asked: Any, **further: Any) -> Result:
            ready = asked and isinstance(asked[0], Options)
            return function(*asked, **further) if ready else function(options(*asked, **further))

        return cast(Verb[Asked, Result], verb)

    return decorate


def several(paths: PathLike | Sequence[PathLike]) -> Sequence[PathLike]:
    """Return one path or several as several."""
    return [paths] if isinstance(paths, str | Path) else paths


def option(default: Any = ..., **settings: Any) -> Any:
    """Return a field of an option that is more than a name, a type and a default. ``settings`` are
    arguments of argparse's ``add_argument``; ``flags``, other names on the command line;
    ``exclusive``, of which exactly one is required; and ``choices_of``, the table (``module:name``)
    whose names are the choices.
    """
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=settings)
    return field(metadata=settings) if default is ... else field(default=default, metadata=settings)


def comma_list(text: str) -> list[str]:
    """Read ``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str) -> list[int]:
    """Read ``0,1,2`` as a list."""
    if not re.fullmatch(r"\d+(,\d+)*", text.replace(" ", ""), re.ASCII):
        raise ArgumentTypeError(f"'{text}' is not a list of whole numbers, e.g. 0,1,2,3")
    return [int(part) for part in text.split(",")]


def image_size(text: str) -> tuple[int, int]:
    """Read ``HxW`` as (height, width)."""
    if not (size := re.fullmatch(r"0*([1-9]\d*)[xX]0*([1-9]\d*)", text, re.ASCII)):
        raise ArgumentTypeError(f"'{text}' is not HxW, e.g. 512x1024")
    return int(size[1]), int(size[2])


def size_or_dynamic(text: str) -> tuple[int, int] | str:
    """Read ``HxW``, or ``dynamic`` as it is."""
    return text if text == "dynamic" else image_size(text)


def colour_triple(text: str) -> tuple[float, float, float]:
    """Read ``R,G,B`` as three numbers."""
    try:
        red, green, blue = map(float, text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not R,G,B, e.g. 0.485,0.456,0.406") from None
    return red, green, blue


def by_name(
    text: str, read: Callable[[str], Value], form: str, columns: str = ""
) -> dict[str, Value]:
    """Read ``a=X,b=Y``, or where there are ``columns`` a CSV file with these two, as a dictionary;
    ``form`` is for the message.
    """
    parts = [part.split("=", 1) for part in comma_list(text)]
    if columns and text.endswith(".csv"):
        try:
            header, *parts = read_rows(Path(text)) or [[]]
        except (OSError, ValueError) as error:
            raise ArgumentTypeError(f"{text} cannot be read as CSV ({error})") from None
        if ",".join(header) != columns:
            raise ArgumentTypeError(
                f"the first line of {text} is '{','.join(header)[:80]}'; expected {columns}"
            )
    values: dict[str, Value] = {}
    for part in parts:
        try:
            name, word = (word.strip() for word in part)
            value = read(word)
        except ValueError:
            raise ArgumentTypeError(f"'{'='.join(part)}' is not {form}") from None
        if name in values:
            raise ArgumentTypeError(f"'{name}' is given twice")
        values[name] = value
    if not values:
        raise ArgumentTypeError(f"'{text}' names nothing; expected {form}")
    return values


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _ends(text: str) -> tuple[float, float]:
    low, high = map(float, text.split(":"))
    return low, high


def frame_groups(text: str) -> str | dict[str, str]:
    """Return a regular expression as it is, or read the group of each frame of a CSV file with the
    columns ``frame,group``.
    """
    return by_name(text, _name, "FRAME,GROUP", "frame,group") if text.endswith(".csv") else text


Folder = Annotated[PathLike, "folder"]
File = Annotated[PathLike, "file"]
Names = Annotated[Sequence[str], comma_list]
Size = Annotated[tuple[Side, Side], image_size]  # (height, width)
Triple = Annotated[tuple[float, float, float], colour_triple]
ScoreRanges = Annotated[
    Mapping[str, tuple[float, float]],
    partial(by_name, read=_ends, form="SCORE=LOW:HIGH, e.g. epistemic=0:0.05"),
]
Overrules = Mapping[str, Any] | Sequence[str]
"""Keys of a configuration to overrule, ``{"trainer.max_epochs": 3}``, or the same in the words of
the command line.
"""


def parts_of(hint: Any) -> list[Any]:
    """Return a type and all that it is made of, its annotations among it."""
    return [hint, *(part for each in get_args(hint) for part in parts_of(each))]


def option_fields(options: type) -> list[Field[Any]]:
    """Return the fields of a dataclass that are options of the command line: those that its
    docstring explains.
    """
    texts = meanings(options)
    return [each for each in fields(options) if each.name in texts]


def flags_of(each: Field[Any]) -> tuple[str, ...]:
    """Return the names of an option on the command line."""
    return tuple(each.metadata.get("flags", (f"--{each.name.replace('_', '-')}",)))


def default_of(each: Field[Any]) -> Any:
    """Return the default of an option, MISSING where it is required."""
    return each.default if each.default_factory is MISSING else each.default_factory()


def command_line(options: Any, *, but: str = "") -> str:
    """Return the words of the command line for the options of a verb that are not the defaults,
    without one of them; GROUPS.csv stands for a file of groups, of which no path is kept.
    """
    words, hints = list[str](), get_type_hints(type(options), include_extras=True)
    for each in option_fields(type(options)):
        value = getattr(options, each.name)
        if each.name != but and value != default_of(each):
            value = (
                [f"{k}={v}" for k, v in value.items()]
                if isinstance(value, Mapping)
                else []
                if value is True
                else value
            )
            texts = [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
            texts = ["GROUPS.csv"] if each.name == "groups" and isinstance(value, list) else texts
            paths, mark = Path in parts_of(hints[each.name]), "x" if each.name == "size" else ","
            words += [flags_of(each)[0], *(texts if paths or not texts else [mark.join(texts)])]
    settings: Overrules = getattr(options, "settings", ())
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    else:
        words += settings
    return shlex.join(words)


def recorded_command(verb: str, options: Any) -> str:
    """Return the command of a verb as it is recorded in the files that it makes.

    Args:
        verb: its name, such as ``evaluate``.
        options: its options, also where a Python function made them.
    """
    return f"segunc {verb} {command_line(options)}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the options of all verbs, which checks them: InputError for a number out of its
    bounds, a text that can be no name, an empty path, or a place for the output that is taken by
    something of another kind.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for each in fields(self):
            flag, value, parts = (
                flags_of(each)[0],
                getattr(self, each.name),
                parts_of(hints[each.name]),
            )
            check_value(flag, value, hints[each.name], "see --help")
            if Path in parts and "" in (value if isinstance(value, list | tuple) else [value]):
                raise InputError(f"{flag} is an empty path", hint=". is the current folder")
            if (
                each.name in ("out", "plots", "events")
                and value
                and ("folder" in parts or "file" in parts)
            ):
                try:
                    check_place(Path(value), folder="folder" in parts)
                except InputError as error:
                    raise InputError(
                        f"{flag} {error.message}", hint=f"give another {flag}"
                    ) from error


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where a verb computes.

    Args:
        device (auto|cpu|cuda[:N]): where to compute (default auto)
    """

    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class TruthOptions:
    """The labels of frames whose maps lie on disk: folders of them, or those of a data set.

    Args:
        anomaly_labels (DIR): anomaly masks of the frames in --maps: 0 normal, 1 anomaly, 255
            ignored, or as --dataset has them
        dataset (NAME): data set: what the values of its labels mean, and with --root its frames
        root (DIR): where the data set lies; with --maps instead of label folders
        split: of the data set (default: the first of test, val, validation and all that has
            labels); selection: the frames that settings are compared on
        anomaly_class (A,B): classes of the data set that the network was not trained on: anomalies
            (may be repeated)
    """

    anomaly_labels: Folder | None = None
    dataset: str | None = None
    root: Folder | None = None
    split: str | None = None
    anomaly_class: Names = option([], action="extend")


@dataclass(frozen=True, kw_only=True)
class ClassTruthOptions(TruthOptions):
    """The same with class labels.

    Args:
        label_map (NAME|CSV): what class labels mean, in place of the data set's own: cityscapes,
            camvid, ... or a CSV
        labels (DIR): class labels of the frames in --maps (needs --dataset or --label-map)
    """

    label_map: str | None = None
    labels: Folder | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(DeviceOptions):
    """Draws, their noise and the network's size and precision.

    Args:
        draws (S): networks that are drawn (default 8)
        seed: of the draws (default 0)
        alpha (A): noise scale of an ABNN in place of its own
        scheme: how the draws of a member are spread (default latin-hypercube)
        scope (SCOPE): sample fewer normalisation layers: all, encoder, decoder, last:N, every:N or
            a pattern
        size (HxW): size the network sees; maps keep the frame's own size
        chunk (N): draws in a batch (default: by memory)
        precision: of the network (default: bfloat16 where the hardware multiplies it, else float32)
        threads (N): CPU threads of the network (default: all cores)
        compile: the network as compiled graphs, for a GPU: faster, once each new size of frames is
            compiled
    """

    draws: Count = 8
    seed: Seed = 0
    alpha: NonNegativeFloat | None = None
    scheme: Literal["independent", "antithetic", "latin-hypercube"] | None = None
    scope: str | None = None
    size: Size | None = None
    chunk: Count | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: Threads | None = None
    compile: bool = False


@dataclass(frozen=True)
class DemoOptions(DeviceOptions):
    """Toy data, train, convert, fine-tune, predict, evaluate, review: the whole job in a few
    minutes.

    Args:
        out (DIR): folder for data, models, maps and pages
        seed: of the scenes (default 0)
    """

    out: Folder
    seed: Seed = 0


@dataclass(frozen=True)
class InitOptions(Options):
    """Look at a folder of images and labels, and write one configuration for train, finetune and
    evaluate.

    Args:
        data (DIR): the folder that holds images and labels, in any usual layout
        out (YAML): the configuration; label map, list of frames and a picture of eight pairs are
            written beside it
        images (PATTERN): folder or pattern of the images below DIR, where names do not tell
        labels (PATTERN): folder or pattern of the labels below DIR, e.g. masks or *_L.png
        label_map (NAME|CSV): what the labels mean, where a label map exists: cityscapes, camvid,
            ... or a CSV
        void (A,B): label values that no class has: ids, colours as #rrggbb, or none (default: 255,
            or black of more than 3 colours)
        two_classes: learn labels of two values as two classes
        labelled_only: leave out images without a label
        overwrite: replace the files of an earlier init
    """

    data: Folder = option(flags=("data",))
    out: File = option(flags=("--out",))
    images: str | None = None
    labels: str | None = None
    label_map: str | None = None
    void: Names | None = None
    two_classes: bool = False
    labelled_only: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class TrainOptions(DeviceOptions):
    """Train a deterministic segmentation network.

    Args:
        config (YAML): see configs/; any key can be overruled as --key.subkey VALUE, and
            --trainer.KEY is any of Lightning's Trainer
        out (DIR): the model folder; the same command continues a killed run
        seeds (A,B): train one network for each seed, into DIR/seed-A and so on: the members of an
            ensemble
    """

    config: File
    out: Folder
    seeds: Annotated[Sequence[Seed], whole_numbers] | None = None
    settings: Overrules = ()


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Take over a network from torchvision, smp or code of your own.

    Args:
        source (SOURCE:NAME): smp:DIR, torchvision:NAME or python:package.module:function
        out (DIR): the model folder
        weights (FILE): a file with the state dict, where the source holds none
        weights_key (KEY): where in the file the weights are: a key or the beginning of the names,
            such as state_dict_ema
        classes (NAME|CSV|A,B,...): a label map (cityscapes, ...), a CSV of one, or the names of the
            classes in the order of the logits
        drop_classes (A,B,...): outputs of the network that are no class, such as void: names of
            --classes, or numbers from 0
        mean (R,G,B): mean of the input normalisation, of images in 0..1
        std (R,G,B): standard deviation of the input normalisation
        size (HxW): size of frames that the network was made for
        arguments (NAME=VALUE,...): for the network's factory, values in JSON
        trust: run the code of a python: network, now and when it is loaded on this machine
    """

    source: str = option(flags=("source",))
    out: Folder
    weights: File | None = None
    weights_key: str | None = None
    classes: str | None = option(None, flags=("--classes", "--label-map"))
    drop_classes: str | None = None
    mean: Triple | None = None
    std: Triple | None = None
    size: Size | None = None
    arguments: Annotated[
        Mapping[str, Any], partial(by_name, read=json.loads, form="NAME=JSON, e.g. width=32")
    ] = option({})
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(DeviceOptions):
    """Turn a trained network into a Bayesian one (ABNN and others), or calibrate a finished model.

    Args:
        base (DIR): model folder; abnn takes a deterministic network, ensemble several folders or
            one of several seeds
        config (YAML): see configs/; any key can be overruled as --key.subkey VALUE. ensemble takes
            none, tta needs none
        out (DIR): the new model folder
        method: which posterior (default abnn), or what is fitted on a finished model; before
            --help, whose keys are shown
    """

    base: Folder | Sequence[Folder]
    config: File | None = None
    out: Folder
    method: str = option("abnn", choices_of="segunc.posteriors.methods:METHODS")
    settings: Overrules = ()


@dataclass(frozen=True)
class PredictOptions(SamplingOptions):
    """Write uncertainty maps of images, folders or a video; resumable.

    Args:
        model (DIR): model folder
        input (PATH): images, folders, glob patterns or videos; of several, each has a sub-folder of
            --out
        out (DIR): the maps folder; the same command continues a killed run
        compact: maps of half the frame's height and width, scores in 0..1 as 8-bit codes: about a
            tenth of the bytes
        overlay: also write overlays, and a video of them for a video, of anomaly where it is
            written, else of entropy
        flag (JSON): with --overlay, a threshold.json: overlays outline what it flags, and name it
        scores (A,B): scores to write (default: those that need no statistics, and anomaly if
            fitted)
        every (N): take every N-th frame (default 1)
        start (TIME): first moment of a video, in seconds or as HH:MM:SS
        end (TIME): moment of a video to stop before
        shard (I/N): only part I of N of the frames; all N share --out, at once or one by one
        mask (PNG): region of interest: where it is black (the vehicle itself, say), maps are read
            as 0 and statistics see nothing
        all_images: take every image of a folder as a frame, those that seem to be labels, too
        verify: read the maps of finished frames and make those again that are not what was written
            (default: compare their sizes)
        overwrite: start the maps folder anew
    """

    model: Folder
    input: PathLike | Sequence[PathLike]
    out: Folder
    compact: bool = False
    overlay: bool = False
    flag: Names = option([])
    scores: Names | None = option(None, flags=("--scores", "--maps"))
    every: PositiveInt = 1
    start: str | None = None
    end: str | None = None
    shard: str | None = None
    mask: File | None = None
    all_images: bool = False
    verify: bool = False
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(SamplingOptions, ClassTruthOptions):
    """Metrics from maps on disk, or from a model in one pass.

    Args:
        maps (DIR): a folder of score maps (png, tif, npy, hdf5) of segunc or any other tool
        model (DIR): a model folder: predict and score in one pass, write only the result. Without
            --dataset and --root on the data that it was made with
        config (YAML): a configuration whose data are evaluated, in the place of --dataset, --root
            and --label-map
        verdicts (FILE): reviewers' verdicts on --maps, exported by their pages (.json), in place of
            labels: how many alarms are true, what was missed
        out (JSON): file of the result (default: only printed)
        frames (PATTERN): only frames (of the maps, or of the split) whose names match this regular
            expression
        every (N): of these, every N-th (default 1)
        scores (A,B): scores to evaluate (default: all maps; with --model those that predict writes
            by default)
        corruption (NAME:N): corrupt the images first: blur, noise, fog, darkness or jpeg, of
            strength 1 to 5, e.g. fog:3; with --model
        protocols (A,B): how anomaly pixels are pooled: pooled, smiyc (default pooled)
        components (A,B): component tracks smiyc-anomaly, smiyc-obstacle: anomalies as objects, in a
            second pass
        by (A,B): anomaly numbers also by size or distance (the row of the lowest pixel) of
            connected objects, or none (default size)
        fps: frames a second of the images, of which predict --every took some, where they are a
            video, in their order
        groups (PATTERN|CSV): anomaly numbers also by groups of frames: what a regular expression
            finds in their names (its first group, where it has one), or a CSV with the columns
            frame,group, of names with or without the ending of a file; frames without one are the
            group other
        flag (SCORE=VALUE|JSON[:GROUP]): also what a threshold flags, of threshold.json with the
            risk that it achieves (may be repeated)
        smallest_object (N): pixels of a labelled object; smaller regions of the labels are specks,
            unless a frame has no larger (default: as threshold.json says, else 10)
        replicates (R): of the bootstrap intervals (default 2000; 0: none)
        resample (UNIT): what is resampled: frame (default), folder, blocks of seconds of a video
            (10s), or a regular expression; frames with one match stay together
        plots (DIR): folder for figures (PDF, SVG, PNG) and the points of their curves (curves.json)
    """

    maps: Folder | None = field(default=None, kw_only=False, metadata={"exclusive": True})
    model: Folder | None = option(None, exclusive=True)
    config: File | None = None
    verdicts: Sequence[File] | None = None
    out: File | None = None
    frames: str | None = None
    every: PositiveInt = 1
    scores: Names | None = None
    corruption: str | None = None
    protocols: Annotated[Sequence[Literal["pooled", "smiyc"]], comma_list] = option(["pooled"])
    components: Names | None = None
    by: Names = option(["size"])
    fps: PositiveFloat | None = None
    groups: Annotated[str | Mapping[str, str], frame_groups] | None = None
    flag: Names = option([], action="extend")
    smallest_object: NonNegativeInt | None = None
    replicates: NonNegativeInt = 2000
    resample: str = "frame"
    plots: Folder | None = None


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions(Options, ClassTruthOptions):
    """A threshold with a promise, from maps and labels of calibration frames: threshold.json, which
    --flag takes elsewhere.

    Args:
        maps (DIR): maps of the calibration frames
        out (JSON): the threshold with its promise
        control: the bounded risk: the share of missed anomaly pixels or objects, of flagged normal
            or kept wrong pixels, or false alarms
        level: the bound: a share, or a number of false alarms a frame, or a minute where units are
            blocks of seconds
        method: conformal (default): the expected risk; ltt (default with a confidence): the risk;
            clopper-pearson: units with any loss
        confidence: of ltt and clopper-pearson (default 0.9)
        also (CONTROL=LEVEL): a second risk of the same threshold, with ltt: flagged-pixels=0.02
        score: score whose threshold is sought (default anomaly if there, else entropy)
        unit (UNIT): what is exchangeable: frame, folder, blocks of seconds of a video (10s), or a
            match of a regular expression (default: 10s where the frames have times, else frame)
        fps: frames a second of the images, of which predict --every took some, where they are a
            video, in their order
        groups (PATTERN|CSV): also a threshold for each group of frames, as --groups of evaluate
            names them
        frames (PATTERN): only frames whose names match this regular expression
        found_share: share of an object's pixels that must be flagged for it to be found (default
            0.5)
        smallest (N): pixels of a flagged region on normal ground that is a false alarm (default 50)
        smallest_object (N): pixels of a labelled object; smaller regions of the labels are specks,
            unless a frame has no larger (default 10)
    """

    maps: Folder
    out: File
    control: Literal[
        "missed-pixels", "flagged-pixels", "missed-objects", "false-alarms", "errors-kept"
    ]
    level: PositiveFloat
    method: Literal["conformal", "ltt", "clopper-pearson"] | None = None
    confidence: Annotated[float, Bound(above=0, below=1)] | None = None
    also: Annotated[
        Mapping[str, float],
        partial(by_name, read=float, form="CONTROL=LEVEL, e.g. flagged-pixels=0.02"),
    ] = option({})
    score: str | None = None
    unit: str | None = None
    fps: PositiveFloat | None = None
    groups: Annotated[str | Mapping[str, str], frame_groups] | None = None
    frames: str | None = None
    found_share: UnitInterval = 0.5
    smallest: PositiveInt = 50
    smallest_object: NonNegativeInt = 10


@dataclass(frozen=True)
class ReviewOptions(DeviceOptions, ClassTruthOptions):
    """A static HTML page on which people look at the maps and judge them; reads their verdicts
    back.

    Args:
        maps (DIR): a maps folder, of segunc or any other tool
        images (PATH): the source images, where they are no longer at their place
        scores (A,B): scores that the page carries, or all (default: the first of anomaly and
            entropy, entropy and epistemic)
        apart (SECONDS): between two moments, of which the gallery shows one each (default 5)
        fps: frames a second of the images, of which predict --every took some, where they are a
            video, in their order
        limit (N): carry only the N worst frames: those of the strongest region of anomaly, else of
            entropy
        blind: hide labels and others' verdicts until a frame is judged: yes, no, or auto: from
            whoever gives a name, unless two others have judged (default auto)
        flag (JSON): a threshold.json, by which the page flags
        verdicts (JSON): check, merge and count verdicts that pages exported; with --out the page
            shows them
        out (DIR): folder of the page
    """

    maps: Folder
    images: str | None = None
    scores: Names | None = None
    apart: NonNegativeFloat = 5.0
    fps: PositiveFloat | None = None
    limit: PositiveInt | None = None
    blind: Literal["auto", "yes", "no"] = option("auto", nargs="?", const="yes")
    flag: Names = option([])
    verdicts: Sequence[File] | None = option(None, flags=("--import",))
    out: Folder | None = None


@dataclass(frozen=True)
class SummaryOptions(DeviceOptions):
    """The worst moments of maps on disk, and frames ranked for labelling.

    Args:
        maps (DIR): a maps folder, or the folder of several
        score: score of the worst moments (default anomaly if there, else entropy)
        statistic: of each frame: strongest region above the threshold (area times excess), mean,
            99th percentile, maximum, or pixels of the largest region (default region where the maps
            record it, else mean)
        top (N): moments and frames to list (default 10)
        apart (SECONDS): between two moments of a video (default 5)
        fps: frames a second of the images, of which predict --every took some, where they are a
            video, in their order
        flag (SCORE=VALUE|JSON): a threshold: how many frames have a region that it flags, and the
            events, regions followed over frames
        events (FILE): also write the events: NAME.csv or NAME.json, with pictures of their peaks,
            or NAME_coco.json, with their masks
        out (CSV): also write both lists of frames as a table
    """

    maps: Folder
    score: str | None = None
    statistic: Literal["region", "mean", "p99", "max", "component"] | None = None
    top: PositiveInt = 10
    apart: NonNegativeFloat = 5.0
    fps: PositiveFloat | None = None
    flag: Names = option([])
    events: File | None = None
    out: File | None = None


@dataclass(frozen=True, kw_only=True)
class MonitorOptions(Options):
    """Are frames still like those that a threshold was calibrated on, and does its promise hold?

    Args:
        threshold (JSON): of segunc threshold, whose score is watched
        maps (DIR): a maps folder that may grow; a later call looks at all of it again
        reference (DIR): maps of the calibration frames (default: none; each frame is compared with
            those before it)
        verdicts (JSON): reviewers' verdicts on --maps, exported by their pages: also bounds of the
            promised risk
        statistic: of each frame: mean, 99th percentile, maximum, strongest region, or pixels of the
            largest region (default mean)
        level (A): probability of a false alarm over all frames to come (default 0.01)
        apart (SECONDS): where units are frames of a video, compare one in so many seconds:
            neighbours resemble each other (default 10)
        fps: frames a second of the images, of which predict --every took some, where they are a
            video, in their order
        out (JSON): file of the state
        plot (FILE): figure of the martingale: FILE.pdf, FILE.svg and FILE.png
    """

    threshold: File
    maps: Folder
    reference: Folder | None = None
    verdicts: Sequence[File] | None = None
    statistic: Literal["mean", "p99", "max", "region", "component"] = "mean"
    level: Annotated[float, Bound(above=0, below=1)] = 0.01
    apart: NonNegativeFloat = 10.0
    fps: PositiveFloat | None = None
    out: File | None = None
    plot: PathLike | None = None


@dataclass(frozen=True)
class OverlayOptions(DeviceOptions, TruthOptions):
    """Pictures and videos of the maps for print: scores over their images, with legends.

    Args:
        maps (DIR): a maps folder, of segunc or any other tool
        out (DIR): folder of the pictures, outside of the maps
        score (A,B): scores to draw (default anomaly, or else entropy)
        frames (A,B): names or patterns of frames, e.g. 000120,night/* (default: all)
        images (PATH): the source images, where they are no longer at their place
        ranges (A=LOW:HIGH,B=LOW:HIGH): ranges of the colours (default: fixed for scores in 0..1, of
            the whole set for unbounded ones)
        flag (A=X,B=Y|JSON): values from which on pixels of a score are outlined, or a
            threshold.json, which the legend names
        format: png is lossless (default), jpg is smaller
        video: also a video of the pictures: WebM (VP8)
        fps (N): frames a second of the video (default: as recorded)
    """

    maps: Folder
    out: Folder
    score: Names | None = None
    frames: Names | None = None
    images: str | None = None
    ranges: ScoreRanges = option({}, flags=("--range",))
    flag: Names | Mapping[str, float] = option([])
    format: Literal["png", "jpg"] = "png"
    video: bool = False
    fps: PositiveFloat | None = None


@dataclass(frozen=True)
class CompareOptions(DeviceOptions):
    """Results side by side, with intervals and paired tests.

    Args:
        results (JSON): results of evaluate
        out (FILE): also write the tables there, as Markdown
        names (A,B): names of the results (default: the files' names)
        scores (A,B): compare these scores; of several results each is a column RESULT:SCORE
        keys (A,B): numbers to show, as dotted paths with wildcards: '*.pooled.*,*.miou'
        baseline (NAME): column, or its file, that differences refer to (default: the first)
    """

    results: Sequence[File] = option(flags=("results",))
    out: File | None = None
    names: Names | None = None
    scores: Names | None = None
    keys: Names | None = None
    baseline: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options, ClassTruthOptions):
    """What is known of a model, for those who release it: report.json, and one page made from it to
    read and to print.

    Args:
        model (DIR): model folder; everything else must be of this model
        runs (JSON): results of evaluate: of frames, of corrupted frames, made with --flag
            threshold.json, or of verdicts
        maps (DIR): maps folders; with labels they give pictures of failures
        threshold (JSON): thresholds with a promise
        monitor (JSON): state of a monitor
        latency (JSON): seconds a frame, as tools/latency.py measures them
        domain (YAML): intended use, and the cells of the operating domain in which frames are
            counted
        out (DIR): folder of report.json and index.html
    """

    model: Folder
    runs: Sequence[File] | None = None
    maps: Sequence[Folder] | None = None
    threshold: Sequence[File] | None = None
    monitor: File | None = None
    latency: Sequence[File] | None = None
    domain: File | None = None
    out: Folder


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """One file that gives prediction and score maps of a frame without this package, checked
    against the sampler.

    Args:
        model (DIR): model folder
        to: onnx for ONNX Runtime and what else reads it, triton for the same as a model of Triton's
            repository, pt2 for torch.export
        out (DIR): folder of the file and of model.json
        draws (S): networks that are drawn (default 8)
        seed: of the draws (default 0)
        draws_as_input: the draws are a second input of the file, and stand in draws.npy
        size (HxW|dynamic): of the frames, fixed in the file (default: the inference size of the
            network); dynamic: any
        scores (A,B): outputs beside the prediction (default: as predict)
        threshold (JSON): of segunc threshold, to be kept in the file with its promise
    """

    model: Folder
    to: Literal["onnx", "triton", "pt2"]
    out: Folder
    draws: Count = 8
    seed: Seed = 0
    draws_as_input: bool = False
    size: Annotated[Any, size_or_dynamic] | None = None
    scores: Names | None = None
    threshold: File | None = None


@dataclass(frozen=True)
class DoctorOptions(SamplingOptions):
    """Is the uncertainty alive and the conversion sound?

    Args:
        model (DIR): model folder
        image (FILE): a clean frame (default: a toy road scene)
    """

    model: Folder
    image: File | None = None
