"""The options of each verb: one dataclass for each verb, from which the command line makes its
options and their help.

Types hold the bounds of numbers and the function that reads a word of the command line. Each
dataclass checks its own values. Docstrings are the help texts, and hold in parentheses the
placeholder of a value. This module imports only the standard library, so that help appears at once.
"""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
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
    Settings,
    Side,
    Threads,
    UnitInterval,
    check_value,
    meanings,
)
from segunc.core.docstrings import Argument, function_docstring
from segunc.core.errors import CallError, InputError
from segunc.core.files import check_place, read_rows
from segunc.core.signatures import annotations_of, check_call, default_of, signature_of
from segunc.core.urls import is_url, shown_url

if TYPE_CHECKING:
    from segunc.posteriors.model import Model
else:

    class Model:
        """Stands for :class:`segunc.Model`, whose module imports torch."""


Value = TypeVar("Value")
OptionFields = ParamSpec("OptionFields")
OptionsOfVerb = TypeVar("OptionsOfVerb", contravariant=True)
Result = TypeVar("Result", covariant=True)
PathLike = str | Path

RAY_ON_THIS_MACHINE = "local"
"""The address of --ray where none is given."""
OUTPUT_OPTIONS = ("out", "plots", "events", "tags", "page")
"""Options that name a file or folder to write."""


class Verb(Protocol[OptionFields, OptionsOfVerb, Result]):
    """A verb as a function of the fields of its options, or of one object that holds them."""

    @overload
    def __call__(self, options: OptionsOfVerb, /) -> Result: ...
    @overload
    def __call__(
        self, *arguments: OptionFields.args, **keywords: OptionFields.kwargs
    ) -> Result: ...


def takes(
    options_type: Callable[OptionFields, OptionsOfVerb],
) -> Callable[[Callable[..., Result]], Verb[OptionFields, OptionsOfVerb, Result]]:
    """Let the function of a verb take the fields of its options, too.

    So ``predict("runs/abnn", "drive.mp4", out="maps")`` is ``predict(PredictOptions(...))``. The
    signature, the annotations and the docstring of the function are those of the fields.

    Args:
        options_type: the dataclass of the verb's options.
    """
    kind = cast(type[Options], options_type)

    def decorate(function: Callable[..., Result]) -> Verb[OptionFields, OptionsOfVerb, Result]:
        result_type = get_type_hints(_returning(function), function.__globals__)["return"]
        signature = signature_of(kind, result_type)

        @wraps(function)
        def verb(*arguments: Any, **keywords: Any) -> Result:
            if arguments and isinstance(arguments[0], Options):
                if not isinstance(arguments[0], kind):
                    given = type(arguments[0]).__name__
                    raise CallError(f"{function.__name__}() takes {kind.__name__}, not {given}")
                return function(*arguments, **keywords)
            check_call(function.__name__, signature, arguments, keywords)
            return function(options_type(*arguments, **keywords))

        verb.__signature__ = signature  # type: ignore[attr-defined]
        verb.__annotations__ = annotations_of(signature)
        verb.__doc__ = function_docstring(
            function.__doc__ or "",
            _arguments_of(kind, signature.parameters),
            f"One :class:`segunc.options.{kind.__name__}` may stand for all arguments.",
            result_type,
        )
        return cast(Verb[OptionFields, OptionsOfVerb, Result], verb)

    return decorate


def _returning(function: Callable[..., Any]) -> Any:
    """Return an object with the annotation of what a function returns, and no other.

    Its parameters may have types that are imported for type checkers alone.
    """
    return SimpleNamespace(__annotations__={"return": function.__annotations__["return"]})


def _arguments_of(options_type: type[Options], names: Iterable[str]) -> list[Argument]:
    """Return the options of a verb as its Python function takes them, in the order of the names."""
    hints = get_type_hints(options_type, include_extras=True)
    texts = meanings(options_type)
    names_of_flags = {}
    for option_field in fields(options_type):
        for flag in flags_of(option_field):
            names_of_flags[flag] = option_field.name
    arguments = []
    for name in names:
        option_field = options_type.__dataclass_fields__[name]
        placeholder, text = texts.get(name, ("", ""))
        text = option_field.metadata.get("in_python", text)
        argument = Argument(
            name=name,
            hint=hints[name],
            default=default_of(option_field),
            form=_form_of(hints[name], placeholder, text),
            text=_in_python(text, names_of_flags),
        )
        arguments.append(argument)
    return arguments


def _form_of(hint: Any, placeholder: str, text: str) -> str:
    """Return how a text is written, empty where any text is right.

    That is the placeholder of the command line, where the value is a text or a list of texts and
    the placeholder is more than a word.
    """
    kinds = parts_of(hint)
    origins = [get_origin(kind) for kind in kinds]
    if str not in kinds or Path in kinds or Mapping in origins:
        return ""
    if Sequence in origins and "," in placeholder:
        return ""
    is_word = placeholder.isalpha() and not re.search(rf"\b{placeholder}\b", text)
    return "" if is_word else placeholder


def _in_python(text: str, names_of_flags: Mapping[str, str]) -> str:
    """Return a help text of the command line for readers of the Python function.

    Options become the names of arguments. Sentences on words of the command line are left out.
    """

    def name_of(flag: re.Match[str]) -> str:
        usual = flag[0].removeprefix("--").replace("-", "_")
        return f"``{names_of_flags.get(flag[0], usual)}``"

    text = text.replace(" (may be repeated)", "")
    sentences = re.split(r"(?<=\.) (?=[A-Z-]|segunc )", text)
    kept = [sentence for sentence in sentences if not re.search(r"--[A-Z]|--help", sentence)]
    text = " ".join(kept).rstrip(".")
    return re.sub(r"--[a-z]+(?:-[a-z]+)*", name_of, text)


def is_source(place: Any) -> bool:
    """Return whether a user names a network by its source, such as ``torchvision:NAME``.

    A file or folder of that name comes first.
    """
    if not isinstance(place, str) or not re.match(r"[a-z][a-z0-9_-]*:.", place):
        return False
    return not Path(place).expanduser().exists()


def several(paths: PathLike | Sequence[PathLike]) -> Sequence[PathLike]:
    """Return a sequence of paths, also where one path was given."""
    if isinstance(paths, str | Path):
        return [paths]
    return paths


def option(default: Any, **settings: Any) -> Any:
    """Return a field of an option that needs more than a name, a type and a default.

    A required option is a ``dataclasses.field`` with these settings as its metadata, because type
    checkers take whatever this function makes for one with a default.

    Args:
        default: the default value.
        settings: arguments of argparse's ``add_argument``, and four of our own. ``flags`` are the
            names on the command line. Of the options that are ``exclusive``, exactly one is
            required. ``choices_of`` (``module:name``) is the table whose names are the choices.
            ``in_python`` says what an argument does that only the Python function has.
    """
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=settings)
    return field(default=default, metadata=settings)


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
    size = re.fullmatch(r"0*([1-9]\d*)[xX]0*([1-9]\d*)", text, re.ASCII)
    if size is None:
        raise ArgumentTypeError(f"'{text}' is not HxW, e.g. 512x1024")
    return int(size[1]), int(size[2])


def size_or_dynamic(text: str) -> tuple[int, int] | str:
    """Read ``HxW`` as (height, width), and leave ``dynamic`` as it is."""
    if text == "dynamic":
        return text
    return image_size(text)


def channel_numbers(text: str) -> tuple[float, ...]:
    """Read ``R,G,B``, or a number for each channel of other images."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        message = f"'{text}' is not a number for each channel, e.g. 0.485,0.456,0.406"
        raise ArgumentTypeError(message) from None


def by_name(
    text: str, read: Callable[[str], Value], form: str, columns: str = ""
) -> dict[str, Value]:
    """Read ``a=X,b=Y``, or the path of a CSV file with two columns, as a dictionary.

    Args:
        text: the word of the command line.
        read: reads a value; raises ValueError for one that it does not understand.
        form: how messages write one entry.
        columns: the first line that a CSV file must have; empty where no file is read.
    """
    if columns and text.endswith(".csv"):
        pairs = _rows_below(text, columns)
    else:
        pairs = [part.split("=", 1) for part in comma_list(text)]
    values: dict[str, Value] = {}
    for pair in pairs:
        try:
            name, word = (cell.strip() for cell in pair)
            value = read(word)
        except ValueError:
            raise ArgumentTypeError(f"'{'='.join(pair)}' is not {form}") from None
        if name in values:
            raise ArgumentTypeError(f"'{name}' is given twice")
        values[name] = value
    if not values:
        raise ArgumentTypeError(f"'{text}' names nothing; expected {form}")
    return values


def json_or_text(word: str) -> Any:
    """Read a value of a function's argument: JSON, or else a text without quotes.

    Raises:
        ValueError: the word is no JSON but was meant to be: a name of Python such as ``True``, or
            the beginning of a list, an object or a quoted text.
    """
    try:
        return json.loads(word)
    except ValueError:
        if word in ("True", "False", "None") or word[:1] in ("[", "{", '"', "'", ""):
            raise
        return word


def _rows_below(path: str, columns: str) -> list[list[str]]:
    """Return the rows of a CSV file below its first line, which must be ``columns``."""
    try:
        header, *rows = read_rows(Path(path)) or [[]]
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"{path} cannot be read as CSV ({error})") from None
    if ",".join(header) != columns:
        first_line = ",".join(header)[:80]
        raise ArgumentTypeError(f"the first line of {path} is '{first_line}'; expected {columns}")
    return rows


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _ends(text: str) -> tuple[float, float]:
    low, high = map(float, text.split(":"))
    return low, high


def frame_groups(text: str) -> str | dict[str, str]:
    """Return a regular expression as it is, or the group of each frame from a CSV file with the
    columns ``frame,group``.
    """
    if text.endswith(".csv"):
        return by_name(text, read=_name, form="FRAME,GROUP", columns="frame,group")
    return text


Folder = Annotated[PathLike, "folder"]
ModelFolder = Annotated[PathLike, "folder", "source"]  # or a source of networks
FolderOrUrl = Annotated[PathLike, "folder", "url"]
File = Annotated[PathLike, "file"]
ResultOrMaps = Annotated[PathLike, "file", "url"]
Names = Annotated[Sequence[str], comma_list]
Size = Annotated[tuple[Side, Side], image_size]  # (height, width)
ChannelNumbers = Annotated[tuple[float, ...], channel_numbers]
ScoreRanges = Annotated[
    Mapping[str, tuple[float, float]],
    partial(by_name, read=_ends, form="SCORE=LOW:HIGH, e.g. epistemic=0:0.05"),
]
Overrules = Mapping[str, Any] | Sequence[str]
"""Keys of a configuration with other values, ``{"trainer.max_epochs": 3}``, or the same as words of
the command line.
"""
ALSO = (
    "level of each further risk that the same threshold bounds, such as"
    ' ``{"flagged-pixels": 0.02}`` (needs method ltt)'
)
IMAGES_IN_DATA = (
    "folder or glob pattern of the images inside ``data``; needed only if init cannot tell images"
    " from labels by their names. A pattern may match folders, such as ``drive_*/camera``"
)
LABELS_IN_DATA = (
    "folder or glob pattern of the labels inside ``data``, e.g. ``masks`` or ``*_L.png``"
)
SEEDS = (
    'train one network for each seed, in ``out/seed-A`` and so on; ``finetune(method="ensemble")``'
    " makes an ensemble of them"
)
RAY_ADDRESS = (
    "address of the Ray cluster whose nodes compute: ``HOST:PORT``, ``auto`` for the cluster that"
    " this machine belongs to, or ``local`` for several processes of this machine. Needs"
    " segunc[ray]"
)
GROUPS = (
    "group of each frame by its name, or a regular expression: a frame's group is the first group,"
    " or else the whole match, in its name. All other frames form the group ``other``. Each group"
    " gets numbers of its own"
)
OVERRULES = (
    'keys of the configuration with other values, such as ``{"trainer.max_epochs": 3}``, or the'
    " same as words of the command line"
)
STREAM_OPTIONS = 'options of FFmpeg for the input, such as ``{"video_size": "640x480"}``'
SETTINGS = (
    "settings of a method, such as ``segunc.ABNN(members=3)``, which then needs no ``method``; or"
    f" {OVERRULES}"
)
BASE = (
    "model to start from, its folder, or its source. abnn takes a deterministic network; ensemble"
    " takes several models, or the folder of ``train(seeds=...)``"
)


def parts_of(hint: Any) -> list[Any]:
    """Return a type and all the types and annotations inside it."""
    parts = [hint]
    for inner in get_args(hint):
        parts += parts_of(inner)
    return parts


def option_fields(options_type: type) -> list[Field[Any]]:
    """Return the fields of a dataclass that are options of the command line: those that its
    docstring explains.
    """
    texts = meanings(options_type)
    return [option_field for option_field in fields(options_type) if option_field.name in texts]


def flags_of(option_field: Field[Any]) -> tuple[str, ...]:
    """Return the names of an option on the command line."""
    usual = f"--{option_field.name.replace('_', '-')}"
    return tuple(option_field.metadata.get("flags", (usual,)))


def command_line(options: Any, *, leave_out: str = "") -> str:
    """Return the words of the command line for all options that differ from their defaults.

    GROUPS.csv stands for a file of groups, because only its content is kept.

    Args:
        options: the options of a verb.
        leave_out: name of an option that is not written.
    """
    hints = get_type_hints(type(options), include_extras=True)
    words: list[str] = []
    for option_field in option_fields(type(options)):
        value = getattr(options, option_field.name)
        if option_field.name == leave_out or value == default_of(option_field):
            continue
        texts = _texts_of(option_field.name, value)
        texts = [shown_url(text) if is_url(text) else text for text in texts]
        if texts and Path not in parts_of(hints[option_field.name]):
            separator = "x" if option_field.name == "size" else ","
            texts = [separator.join(texts)]
        flag = flags_of(option_field)[0]
        if flag.startswith("-"):
            words.append(flag)
        words += texts
    words += words_of_settings(getattr(options, "settings", ()))
    return shlex.join(words)


def _texts_of(name: str, value: Any) -> list[str]:
    """Return the value of an option as texts: none for a switch, several for a list."""
    if name == "groups" and isinstance(value, Mapping | list):
        return ["GROUPS.csv"]
    if value is True:
        return []
    if isinstance(value, Mapping):
        return [f"{key}={_text_of_entry(name, inner)}" for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [str(inner) for inner in value]
    return [str(value)]


def _text_of_entry(name: str, value: Any) -> str:
    """Return a value of an option of the form ``a=X,b=Y``, as the command line reads it."""
    if name == "arguments":
        return json.dumps(value)
    if isinstance(value, tuple):
        return ":".join(str(end) for end in value)
    return str(value)


def words_of_settings(settings: Overrules) -> list[str]:
    """Return the words of the command line for other values of a configuration's keys."""
    if not isinstance(settings, Mapping):
        return list(settings)
    words = []
    for key, value in settings.items():
        words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return words


def recorded_command(verb: str, options: Any) -> str:
    """Return the command of a verb as it is recorded in the files that it makes.

    Args:
        verb: its name, such as ``evaluate``.
        options: its options, also where a Python function made them.
    """
    return f"segunc {verb} {command_line(options)}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the options of all verbs, which checks them.

    Raises:
        InputError: a number is out of its bounds, a text cannot be a name, a path is empty, or
            the place of the output is taken by something of another kind.
    """

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for option_field in fields(self):
            flag = flags_of(option_field)[0]
            hint = hints[option_field.name]
            value = _as_several(getattr(self, option_field.name), hint)
            object.__setattr__(self, option_field.name, value)
            kinds = parts_of(hint)
            check_value(flag, value, hint, "see --help")
            if Path in kinds:
                _check_path_is_named(flag, value)
            may_be_url = "url" in kinds and is_url(value)
            if option_field.name in OUTPUT_OPTIONS and value and not may_be_url:
                _check_output(flag, value, kinds)


def _as_several(value: Any, hint: Any) -> Any:
    """Return one text or path as a list if the option takes several, and other values as they are.

    So ``flag="entropy=0.5"`` in Python is what it is on the command line.
    """
    if not isinstance(value, str | Path) or hint == Overrules:
        return value
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    is_list_of_words = False
    takes_several = False
    for kind in alternatives:
        plain_kind, *annotations = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        is_list_of_words = is_list_of_words or comma_list in annotations
        if get_origin(plain_kind) is Sequence and int not in parts_of(plain_kind):
            takes_several = True
        elif get_origin(plain_kind) is not Mapping and plain_kind is not type(None):
            return value
    if not takes_several:
        return value
    return comma_list(value) if is_list_of_words and isinstance(value, str) else [value]


def _check_path_is_named(flag: str, value: Any) -> None:
    paths = value if isinstance(value, list | tuple) else [value]
    if "" in paths:
        raise InputError(f"{flag} is an empty path", hint=". is the current folder")


def _check_output(flag: str, value: Any, kinds: Sequence[Any]) -> None:
    """Raise InputError where the place of an output is taken by something of another kind."""
    if "folder" not in kinds and "file" not in kinds:
        return
    if is_url(value):
        raise InputError(
            f"{flag} {shown_url(value)} is a URL", hint=f"give {flag} a path of this machine"
        )
    try:
        check_place(Path(value), folder="folder" in kinds)
    except InputError as error:
        raise InputError(f"{flag} {error.message}", hint=f"give another {flag}") from error


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where to compute.

    Args:
        device (auto|cpu|cuda[:N]): device of the network (default auto: a GPU if there is one)
    """

    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Networks by their source.

    Args:
        trust: allow the code of a python: source to run, now and whenever this machine loads the
            network
    """

    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class TruthOptions:
    """Anomaly labels and data set.

    Args:
        anomaly_labels (DIR): anomaly masks of the frames of --maps: 0 is normal, 1 is anomaly and
            255 is ignored, unless --dataset names other values
        dataset (NAME): data set that the labels belong to. It says what their values mean, and with
            --root it also gives the frames
        root (DIR): folder of the data set; with --maps, give this or the folders of labels, but not
            both
        split: split of the data set (default: the first of test, val, validation and all that has
            labels). selection is the split on which settings are chosen: val, or its substitute if
            every frame of val holds an anomaly
        anomaly_class (A,B): classes of the data set that count as anomalies because the network was
            not trained on them (may be repeated)
        config (YAML): configuration file whose section data names the data set, instead of
            --dataset, --root and --label-map
    """

    anomaly_labels: FolderOrUrl | None = None
    dataset: str | None = None
    root: Folder | None = None
    split: str | None = None
    anomaly_class: Names = option([], action="extend")
    config: File | None = None


@dataclass(frozen=True, kw_only=True)
class ClassTruthOptions(TruthOptions):
    """Class labels.

    Args:
        label_map (NAME|CSV): label map, which says what class each label value is: its name
            (cityscapes, camvid, ...) or a CSV file (default: as --dataset says)
        labels (DIR): class labels of the frames of --maps (needs --dataset, --label-map or
            --config)
    """

    label_map: str | None = None
    labels: FolderOrUrl | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(DeviceOptions):
    """Draws, size of frames, precision and speed.

    Args:
        draws (S): number of sampled networks (default 8)
        seed: random seed of the draws (default 0)
        alpha (A): noise scale of an ABNN, at least 0, for all its layers (default: the one in the
            model, or those of its layers)
        scheme: how the noise of the draws is chosen: independent of each other, antithetic (in
            pairs of opposite sign), or latin-hypercube (spread evenly over its distribution, the
            default)
        scope (SCOPE): sample only these normalisation layers: all, encoder, decoder, last:N,
            every:N or a regular expression for their names (default: those of the model)
        size (HxW): height and width to which frames are resized for the network; maps keep the size
            of the frame (default: the inference size of the model, if it has one)
        chunk (N): number of draws that run as one batch (default: as many as memory allows)
        precision: number format of the network (default auto: bfloat16 if the hardware is faster
            with it and the network suits it, otherwise float32)
        threads (N): CPU threads of the network (default: all cores)
        compile: compile the network (on, also without a word). It then runs faster, after one
            compilation for each size of frames. auto, of predict alone, measures the first frame,
            and compiles where the run is long enough and gets faster
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
    compile: Literal["on", "auto"] | bool = option(False, nargs="?", const="on")


@dataclass(frozen=True)
class DemoOptions(DeviceOptions):
    """Run all steps on toy scenes in a few minutes: train, predict, evaluate and review.

    The last line names a page to open in a browser.

    Args:
        out (DIR): folder for data, models, maps and pages
        seed: random seed of the scenes (default 0)
    """

    out: Folder
    seed: Seed = 0


@dataclass(frozen=True)
class InitOptions(Options):
    """Make a configuration for train, finetune and evaluate from a folder of images and labels.

    Prints what it found and what it assumed.

    Args:
        data (DIR): folder that holds images and labels, in any usual layout
        out (YAML): configuration to write; a label map, a list of frames and a picture of eight
            pairs are written beside it
        images (PATTERN): folder or glob pattern of the images inside DIR; needed only if init
            cannot tell images from labels by their names. A pattern may match folders, such as
            drive_*/camera
        labels (PATTERN): folder or glob pattern of the labels inside DIR, e.g. masks or *_L.png
        dataset (NAME): published data set that DIR holds: a name of docs/data-sets.md, or
            mine.yaml:NAME of a table of your own (default: init recognises it by its files)
        label_map (NAME|CSV): label map, which says what class each label value is: its name
            (cityscapes, camvid, ...) or a CSV file
        void (A,B): label values to ignore: ids, colours as #rrggbb, or none (default: 255, or black
            if labels have more than 3 colours)
        two_classes: if labels have only two values, train on them as two classes (default: treat
            them as anomaly masks and stop)
        labelled_only: leave out images that have no label
        update: add new frames to the files of an earlier init, by its --images, --labels and
            --labelled-only; names of classes, void values, splits and the configuration stay as
            they are, and --void adds a row
        overwrite: replace the files of an earlier init, with all that was edited in them
    """

    data: Folder = field(metadata={"flags": ("data",)})
    out: File = field(metadata={"flags": ("--out",)})
    images: str | None = option(None, in_python=IMAGES_IN_DATA)
    labels: str | None = option(None, in_python=LABELS_IN_DATA)
    dataset: str | None = None
    label_map: str | None = None
    void: Names | None = None
    two_classes: bool = False
    labelled_only: bool = False
    update: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class TrainOptions(DeviceOptions):
    """Train a deterministic segmentation network, which finetune then turns into a Bayesian one.

    Args:
        config (YAML): configuration file; the folder configs holds examples. --KEY.SUBKEY VALUE
            changes one of its keys, and --trainer.KEY VALUE sets any argument of Lightning's
            Trainer
        out (DIR): model folder to write; the same command continues a run that was stopped
        seeds (A,B): train one network for each seed, in DIR/seed-A and so on; finetune --method
            ensemble makes an ensemble of them
    """

    config: File
    out: Folder
    seeds: Annotated[Sequence[Seed], whole_numbers] | None = option(None, in_python=SEEDS)
    settings: Overrules = option((), in_python=OVERRULES)


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Import a trained network from transformers, torchvision, smp or code of your own.

    Args:
        source (SOURCE:NAME): network to import: hf:DIR, hf:OWNER/NAME of the Hugging Face Hub
            (@REVISION behind it), smp:DIR, torchvision:NAME or python:package.module:function
        out (DIR): model folder to write
        weights (FILE): file with the state dict, if the source holds no weights
        weights_key (KEY): key of the weights in that file, or the first part of their names, e.g.
            state_dict_ema
        classes (NAME|CSV|A,B,...): classes in the order of the logits: the name of a label map
            (cityscapes, ...), the CSV file of a label map, or the names of the classes
        drop_classes (A,B,...): outputs of the network that are not classes, e.g. void: names from
            --classes, or numbers counted from 0
        mean (R,G,B): mean of the input normalisation, for images in 0..1, a number for each channel
            of the network's images
        std (R,G,B): standard deviation of the input normalisation, for images in 0..1, a number for
            each channel
        size (HxW): height and width to which frames are resized for the network; a frame of another
            aspect ratio keeps its ratio
        arguments (NAME=VALUE,...): arguments of the function that builds the network; a value is
            JSON, or a text without quotes
        trust: allow the code of a python: network to run, now and whenever this machine loads the
            network
    """

    source: str = field(metadata={"flags": ("source",)})
    out: Folder
    weights: File | None = None
    weights_key: str | None = None
    classes: str | None = option(None, flags=("--classes", "--label-map"))
    drop_classes: str | None = None
    mean: ChannelNumbers | None = None
    std: ChannelNumbers | None = None
    size: Size | None = None
    arguments: Annotated[
        Mapping[str, Any],
        partial(by_name, read=json_or_text, form="NAME=JSON, e.g. width=32 or pretrained=false"),
    ] = option({}, in_python="arguments of the function that builds the network, by name")
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(DeviceOptions, SourceOptions):
    """Turn a trained network into a Bayesian one (ABNN and others), or calibrate a finished model.

    Args:
        base (DIR|SOURCE): model folder, or a network by its source, to start from. abnn takes a
            deterministic network; ensemble takes several folders, or the folder of train --seeds
        config (YAML): configuration file; the folder configs holds examples. --KEY.SUBKEY VALUE
            changes one of its keys. ensemble takes no configuration, and tta needs none
        out (DIR): model folder to write
        method: posterior to make (default abnn), or what to fit on a finished model. segunc
            finetune --method NAME --help-all lists the keys of a method
    """

    base: ModelFolder | Model | Sequence[ModelFolder | Model] = field(metadata={"in_python": BASE})
    config: File | None = None
    out: Folder
    method: str = option("abnn", choices_of="segunc.posteriors.methods:METHODS")
    settings: Overrules | Settings = option((), in_python=SETTINGS)


@dataclass(frozen=True)
class PredictOptions(SamplingOptions, SourceOptions):
    """Write uncertainty maps of images, folders, videos and cameras of recordings.

    Args:
        model (DIR|SOURCE): model folder, or a network by its source, such as torchvision:NAME,
            which is imported once and kept, with noise
        input (PATH): images, folders, glob patterns, videos or topics of recordings, such as
            drive.mcap:/camera/front, as paths or URLs; each of several inputs gets its own
            sub-folder of --out
        out (DIR): maps folder to write, a path or an s3:// or gs:// URL; the same command continues
            a run that was stopped
        compact: write maps of half the height and width, with 8-bit codes of scores in 0..1; they
            take about a tenth of the bytes
        overlay: also write overlays (and a video, for video input) of the score of --flag, else of
            anomaly if it is written, otherwise of entropy
        flag (JSON): threshold.json for --overlay: overlays outline what this threshold flags, and
            their legend names it
        scores (A,B): scores to write (default: those that every model has, and anomaly if it was
            fitted on the model)
        every (N): take every N-th frame (default 1)
        start (TIME): start at this moment of a video or recording, in seconds or as HH:MM:SS
        end (TIME): stop before this moment of a video or recording, in seconds or as HH:MM:SS
        shard (I/N): process only part I of N parts of the frames. All parts use the same --out, at
            the same time or one after another
        ray (ADDRESS): compute on the nodes of the Ray cluster at HOST:PORT, or of the cluster that
            this machine belongs to (auto). Without an address, compute in several processes of this
            machine. Needs segunc[ray]
        mask (PNG): image that is black where frames are left out (e.g. at the bonnet): there maps
            are read as 0, and statistics do not count them
        all_images: take every image of a folder as a frame, even if it looks like a label
        verify: read the maps of finished frames, and make damaged maps again (default: compare only
            the sizes of their files)
        overwrite: replace the maps of an earlier run
    """

    model: ModelFolder
    input: PathLike | Sequence[PathLike]
    out: FolderOrUrl
    compact: bool = False
    overlay: bool = False
    flag: Names = option([])
    scores: Names | None = option(None, flags=("--scores", "--maps"))
    every: PositiveInt = 1
    start: str | None = None
    end: str | None = None
    shard: str | None = None
    ray: str | None = option(None, nargs="?", const=RAY_ON_THIS_MACHINE, in_python=RAY_ADDRESS)
    mask: File | None = None
    all_images: bool = False
    verify: bool = False
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(SamplingOptions, SourceOptions, ClassTruthOptions):
    """Measure how well scores find errors and anomalies, on maps or on a model that makes them.

    Args:
        maps (DIR): folder of score maps (png, tif, npy, hdf5) from segunc or any other tool
        model (DIR|SOURCE): model folder, or a network by its source: predict and evaluate together,
            and write only the result (default data: the data set that the model was made with)
        verdicts (FILE): verdicts on --maps that review pages exported (.json). They are used
            instead of labels, to count true alarms and misses
        out (JSON): file of the result (default: only print it)
        frames (PATTERN): evaluate only frames whose names match this regular expression, e.g.
            ^night/. A pattern with * and ? alone stands for whole names, e.g. night/*
        every (N): of these frames, evaluate every N-th (default 1)
        scores (A,B): scores to evaluate (default: all maps; with --model, those that predict
            writes)
        corruption (NAME:N): with --model, corrupt the images first: blur, noise, fog, darkness or
            jpeg, with a strength of 1 to 5, e.g. fog:3
        protocols (A,B): protocols that pool the pixels with anomaly labels into one number: pooled
            (all frames), per-image (mean of the numbers of each frame), smiyc (the
            SegmentMeIfYouCan benchmark) (default pooled)
        components (A,B): also count anomalies as objects, in a second pass, by the rules of these
            SegmentMeIfYouCan tracks: smiyc-anomaly, smiyc-obstacle
        by (A,B): also give anomaly numbers by the size or the distance of connected objects, or
            none for neither. Distance is the row of an object's lowest pixel (default size)
        fps: frame rate of the video that the images come from, before predict --every took some of
            its frames; images then have times, in the order of their names
        groups (PATTERN|CSV): also give anomaly numbers by groups of frames. PATTERN is a regular
            expression: a frame's group is the first group, or else the whole match, in its name.
            CSV is a file with the columns frame,group. All other frames form the group other
        flag (SCORE=VALUE|JSON[:GROUP]): also count what this threshold flags; a threshold.json also
            gives the risk that its threshold achieves (may be repeated, once for each score)
        smallest_object (N): smallest size of a labelled object, in pixels. Smaller labelled regions
            are left out, but only if their frame has a larger one (default: as threshold.json says,
            otherwise 10)
        replicates (R): number of bootstrap replicates for the intervals (default 2000; 0: no
            intervals)
        resample (UNIT): unit that the bootstrap draws: frame (default), folder, blocks of seconds
            of a video (10s), or a regular expression, which keeps frames with the same match
            together
        plots (DIR): folder for figures (PDF, SVG, PNG) and the points of their curves (curves.json)
    """

    maps: FolderOrUrl | None = field(default=None, kw_only=False, metadata={"exclusive": True})
    model: ModelFolder | None = option(None, exclusive=True)
    verdicts: Sequence[File] | None = None
    out: File | None = None
    frames: str | None = None
    every: PositiveInt = 1
    scores: Names | None = None
    corruption: str | None = None
    protocols: Annotated[Sequence[Literal["pooled", "per-image", "smiyc"]], comma_list] = option(
        ["pooled"]
    )
    components: Names | None = None
    by: Names = option(["size"])
    fps: PositiveFloat | None = None
    groups: Annotated[str | Mapping[str, str], frame_groups] | None = option(None, in_python=GROUPS)
    flag: Names = option([], action="extend")
    smallest_object: NonNegativeInt | None = None
    replicates: NonNegativeInt = 2000
    resample: str = "frame"
    plots: Folder | None = None


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions(Options, ClassTruthOptions):
    """Find a threshold with a guarantee, from maps and labels of calibration frames.

    Give the file that it writes (threshold.json) to --flag of other verbs.

    Args:
        maps (DIR): maps of the calibration frames
        out (JSON): file to write, with the threshold and its promise, e.g. threshold.json
        control: risk to bound. missed-pixels: share of anomaly pixels that are not flagged.
            missed-objects: share of objects that are not found. flagged-pixels: share of normal
            pixels that are flagged. false-alarms: number of flagged regions on normal ground.
            errors-kept: share of wrong predictions among pixels that are not flagged
        level: bound of the risk: a share, above 0 and below 1. For false-alarms the number of them
            for each frame, or for each minute if units are blocks of seconds: above 0 and below 5,
            because at most 5 are counted. With clopper-pearson it is always a share, of units
        method: what the guarantee bounds. conformal (the default): the expected risk. ltt (the
            default with --confidence): the risk itself, with a confidence. clopper-pearson: the
            share of units with any loss, e.g. a missed object
        confidence: confidence of ltt and clopper-pearson, above 0 and below 1 (default 0.9)
        also (CONTROL=LEVEL): bound a second risk with the same threshold, e.g. flagged-pixels=0.02
            (needs method ltt)
        score: score that gets the threshold (default: anomaly if there are maps of it, otherwise
            entropy)
        unit (UNIT): what counts as one independent observation (statistically: what is
            exchangeable). UNIT is frame, folder, blocks of seconds of a video (10s), or a regular
            expression whose match names the unit (default: 10s if frames have times, otherwise
            frame)
        fps: frame rate of the video that the images come from, before predict --every took some of
            its frames; images then have times, in the order of their names
        groups (PATTERN|CSV): also find a threshold for each group of frames; write groups as for
            evaluate --groups
        frames (PATTERN): use only frames whose names match this regular expression, e.g. ^night/. A
            pattern with * and ? alone stands for whole names, e.g. night/*
        found_share: share of an object's pixels that must be flagged for the object to be found, 0
            to 1 (default 0.5)
        smallest (N): smallest false alarm: pixels of a flagged region on normal ground; smaller
            regions are not counted (default 50)
        smallest_object (N): smallest size of a labelled object, in pixels. Smaller labelled regions
            are left out, but only if their frame has a larger one (default 10)
        place (A,B): classes of the surface that is promised, e.g. road,sidewalk. Outside the convex
            hull of the pixels that are predicted as these classes, nothing is flagged and nothing
            is promised (default: the whole frame)
        margin (PIXELS): pixels by which everything that is flagged is widened to each side, 0 to
            256 (default 0)
        level_frames: replace each score by how rare it is within its frame, so that the threshold
            flags about the same share of every frame
    """

    maps: FolderOrUrl
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
    ] = option({}, in_python=ALSO)
    score: str | None = None
    unit: str | None = None
    fps: PositiveFloat | None = None
    groups: Annotated[str | Mapping[str, str], frame_groups] | None = option(None, in_python=GROUPS)
    frames: str | None = None
    found_share: UnitInterval = 0.5
    smallest: PositiveInt = 50
    smallest_object: NonNegativeInt = 10
    place: Names | None = None
    margin: Annotated[int, Bound(least=0, most=256)] = 0
    level_frames: bool = False


@dataclass(frozen=True)
class ReviewOptions(DeviceOptions, ClassTruthOptions):
    """Make a page on which people judge alarms, or read the verdicts that they exported from it.

    The page is static HTML. It opens from disk, without a server.

    Args:
        maps (DIR): maps folder of segunc or any other tool
        images (PATH): source images, if they were moved after predict
        scores (A,B): scores that the page shows, or all (default: entropy, epistemic, the first of
            anomaly and entropy, and those of --flag)
        apart (SECONDS): shortest time between two moments; the gallery shows one frame of each
            (default 5)
        fps: frame rate of the video that the images come from, before predict --every took some of
            its frames; images then have times, in the order of their names
        limit (N): show only the N worst frames: those with the strongest regions of anomaly, or of
            entropy where no map of anomaly exists
        blind: hide labels and the verdicts of others until a frame is judged: yes, no, or auto for
            reviewers who gave their name, unless two others have judged (default auto)
        flag (SCORE=VALUE|JSON): threshold that decides what the page flags: entropy=0.6, or
            threshold.json
        verdicts (JSON): verdicts that pages exported: check, merge and count them. Of two by one
            reviewer on one frame or region, the later one counts. With --out the page shows them
            beside those of earlier imports
        out (DIR): folder of the page
        to: page (default), or fiftyone: a data set of FiftyOne, whose files are in --out; verdicts
            become tags
        tags (JSON): write the verdicts that tags in FiftyOne give to this file, which --import and
            all other verbs read
    """

    maps: FolderOrUrl
    images: str | None = None
    scores: Names | None = None
    apart: NonNegativeFloat = 5.0
    fps: PositiveFloat | None = None
    limit: PositiveInt | None = None
    blind: Literal["auto", "yes", "no"] = option("auto", nargs="?", const="yes")
    flag: Names = option([])
    verdicts: Sequence[File] | None = option(None, flags=("--import",))
    out: Folder | None = None
    to: Literal["page", "fiftyone"] = "page"
    tags: File | None = None


@dataclass(frozen=True)
class SummaryOptions(DeviceOptions):
    """List the worst moments of a run, and the frames that should be labelled first.

    Args:
        maps (DIR): maps folder, or a folder of several
        score: score of the worst moments (default: that of --flag, else anomaly if there are maps
            of it, otherwise entropy)
        statistic: number by which frames are ranked (default: region if the maps record it,
            otherwise mean). mean, p99 and max are the mean, the 99th percentile and the maximum of
            the score. region is the strength of the strongest region, which is its area times its
            mean excess over the threshold of --flag, else over the recorded one. component is the
            pixels of the largest region
        top (N): number of moments and frames to list (default 10)
        apart (SECONDS): shortest time between two moments of a video (default 5)
        fps: frame rate of the video that the images come from, before predict --every took some of
            its frames; images then have times, in the order of their names
        flag (SCORE=VALUE|JSON): threshold: count the frames with a region that it flags, and follow
            these regions over frames as events
        events (FILE): also write the events: NAME.csv or NAME.json with pictures of their peaks, or
            NAME_coco.json with their masks
        out (CSV): also write both lists as a table
    """

    maps: FolderOrUrl
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
    """Check whether new frames are still like the calibration frames of a threshold.

    The promise of the threshold holds only for such frames. If the monitor finds a change, the exit
    code is 1.

    Args:
        threshold (JSON): threshold.json of segunc threshold; the monitor watches its score
        maps (DIR): maps folder, to which predict may still add frames; each call reads all of it
        reference (DIR): maps of the calibration frames (default: compare each frame only with those
            before it)
        verdicts (JSON): verdicts on --maps that review pages exported; they also give bounds of the
            risk that the threshold promised to limit. Those on calibration frames, or given at
            another threshold, do not count
        statistic: number that is watched for each frame (default mean). mean, p99 and max are the
            mean, the 99th percentile and the maximum of the score. region is the strength of the
            strongest region. component is the pixels of the largest region
        level (A): largest probability that the monitor ever gives a false alarm, over all frames to
            come, above 0 and below 1 (default 0.01)
        apart (SECONDS): if units are frames of a video, compare only one frame in each period of
            this length, because neighbouring frames are alike (default 10)
        fps: frame rate of the video that the images come from, before predict --every took some of
            its frames; images then have times, in the order of their names
        out (JSON): file to write, with the state of the monitor; report --monitor reads it
        plot (FILE): figure of the evidence for a change after each frame (the martingale), written
            as FILE.pdf, FILE.svg and FILE.png
    """

    threshold: File
    maps: FolderOrUrl
    reference: FolderOrUrl | None = None
    verdicts: Sequence[File] | None = None
    statistic: Literal["mean", "p99", "max", "region", "component"] = "mean"
    level: Annotated[float, Bound(above=0, below=1)] = 0.01
    apart: NonNegativeFloat = 10.0
    fps: PositiveFloat | None = None
    out: File | None = None
    plot: PathLike | None = None


@dataclass(frozen=True, kw_only=True)
class WatchOptions(SamplingOptions, SourceOptions):
    """Watch a stream, a camera, a pipe or a folder, and tell at once what a threshold flags.

    Each event is one line of JSON: an alarm, the state of the run every few seconds, and each gap
    in the stream. Frames that come while one is processed are dropped and counted, except the
    newest. If the stream is lost and does not come back, the exit code is 1.

    Args:
        model (DIR|SOURCE): model folder, or a network by its source
        input (SOURCE): stream (rtsp://, http://, udp://, tcp://, srt://, rtp://, rtmp://), camera
            (camera:0 or /dev/video0), - for standard input, a folder that is being filled, or a
            video
        flag (SCORE=VALUE|JSON): threshold that decides what is an alarm; a threshold.json is
            refused if it belongs to another model or other settings (may be repeated)
        out (DIR): folder to write, with alarms.jsonl; the same command goes on in it (default:
            print the lines)
        max_latency (SECONDS): drop frames that are older when their turn comes (default: no limit)
        queue (N): number of frames that may wait; a newer frame takes the place of the oldest
            (default 1)
        every_frame: drop no frame: what sends them waits. Not for streams and cameras
        pace: give the frames of a video at once (free, default, with every frame), or at their own
            times (real)
        stream_format (NAME): FFmpeg's name of the format, e.g. rawvideo (default: FFmpeg finds out)
        stream_options (A=B,...): options of FFmpeg for the input, e.g. video_size=640x480
        stall (SECONDS): time without a frame after which a stream has stalled and is opened again
            (default 10)
        reconnect (N): number of attempts in a row to open a lost stream again, with waits of 0.5 to
            30 seconds (default 10)
        size_change: what to do if frames change their size, for which the threshold does not hold:
            stop with exit code 1 (default), or skip them until the first size comes back
        status (SECONDS): time between two lines on the state of the run (default 10)
        frame_lines: also write a line for each processed frame without an alarm
        keep: with --out, also keep images and maps of alarms, of all frames, or none (default);
            review reads them
        keep_limit (GB): size from which on nothing more is kept (default 1)
        mask (PNG): image that is black where frames are left out (e.g. at the bonnet)
        reference (DIR): maps of the calibration frames, with which the monitor compares (default:
            the frames before)
        statistic: number that the monitor watches for each frame (default mean), as for segunc
            monitor
        level (A): largest probability that the monitor ever gives a false alarm, above 0 and below
            1 (default 0.01)
        apart (SECONDS): if units of the threshold are frames, the monitor compares one frame in
            each period of this length (default 10)
        no_monitor: do not compare the frames with those of the calibration
        duration (SECONDS): end after this time (default: when the source ends)
    """

    model: ModelFolder
    input: PathLike
    flag: Names = field(metadata={"action": "extend"})
    out: Folder | None = None
    max_latency: PositiveFloat | None = None
    queue: PositiveInt = 1
    every_frame: bool = False
    pace: Literal["free", "real"] = "free"
    stream_format: str | None = None
    stream_options: Annotated[
        Mapping[str, str],
        partial(by_name, read=str, form="NAME=VALUE, e.g. video_size=640x480"),
    ] = option({}, in_python=STREAM_OPTIONS)
    stall: PositiveFloat = 10.0
    reconnect: NonNegativeInt = 10
    size_change: Literal["stop", "skip"] = "stop"
    status: PositiveFloat = 10.0
    frame_lines: bool = False
    keep: Literal["none", "alarms", "all"] = "none"
    keep_limit: PositiveFloat = 1.0
    mask: File | None = None
    reference: Folder | None = None
    statistic: Literal["mean", "p99", "max", "region", "component"] = "mean"
    level: Annotated[float, Bound(above=0, below=1)] = 0.01
    apart: NonNegativeFloat = 10.0
    no_monitor: bool = False
    duration: PositiveFloat | None = None


@dataclass(frozen=True)
class OverlayOptions(DeviceOptions, TruthOptions):
    """Draw scores over their images with legends, as pictures and videos for print.

    Args:
        maps (DIR): maps folder of segunc or any other tool
        out (DIR): folder of the pictures, outside the maps folder
        score (A,B): scores to draw (default: those of --flag, else anomaly if there are maps of it,
            otherwise entropy; with --to rerun all)
        frames (A,B): draw only frames with these names, or whose names match this regular
            expression, e.g. ^night/. A pattern with * and ? alone stands for whole names, e.g.
            night/*
        images (PATH): source images, if they were moved after predict
        ranges (A=LOW:HIGH,B=LOW:HIGH): scores at the two ends of the colour bar (default: fixed for
            scores in 0..1, the range of all frames for unbounded scores)
        flag (A=X,B=Y|JSON): outline pixels whose score is at or above a value, or what a
            threshold.json flags; the legend names it
        format: png is lossless (default), jpg is smaller; pdf and svg are pages for print, 8 cm
            wide, whose legend is text of 7 points
        video: also make a video of the pictures
        video_format: webm (VP8, default) is played by every browser, mp4 (H.264) by most other
            players
        fps (N): frame rate of that video (default: as recorded)
        to: pictures (default), or rerun: one file recording.rrd for the Rerun viewer, with a time
            line of images, predictions, scores and flagged regions
    """

    maps: FolderOrUrl
    out: Folder
    score: Names | None = None
    frames: Names | None = None
    images: str | None = None
    ranges: ScoreRanges = option({}, flags=("--range",))
    flag: Names | Mapping[str, float] = option([])
    format: Literal["png", "jpg", "pdf", "svg"] = "png"
    video: bool = False
    video_format: Literal["webm", "mp4"] = "webm"
    fps: PositiveFloat | None = None
    to: Literal["pictures", "rerun"] = "pictures"


@dataclass(frozen=True)
class CompareOptions(DeviceOptions):
    """Show several results side by side, with intervals and paired tests; or, without labels, how
    the maps of several folders differ.

    Maps are compared over the frames that two folders share: predicted classes, scores and flagged
    regions. That does not say which maps are better.

    Args:
        results (JSON|DIR): results of evaluate, or maps folders over the same frames
        out (FILE): also write the tables to this file, as Markdown
        names (A,B): names of the results or folders (default: those of their files or folders)
        scores (A,B): compare only these scores; with several results, each column is RESULT:SCORE
        keys (A,B): of results: numbers to show, as dotted paths with wildcards, e.g.
            '*.pooled.*,*.miou'
        baseline (NAME): column to which differences refer, or its file or folder (default: the
            first)
        flag (SCORE=VALUE|JSON): of maps: threshold whose flagged regions are compared. NAME: before
            it names the one folder for which it is, e.g. abnn:threshold.json
        top (N): of maps: number of frames that differ most to list (default 10)
        page (HTML): of maps: also show these frames on a page
        images (PATH): source images for the page, if they were moved after predict
    """

    results: Sequence[ResultOrMaps] = field(metadata={"flags": ("results",)})
    out: File | None = None
    names: Names | None = None
    scores: Names | None = None
    keys: Names | None = None
    baseline: str | None = None
    flag: Names = option([])
    top: PositiveInt = 10
    page: File | None = None
    images: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options, SourceOptions, ClassTruthOptions):
    """Write one page with all measurements of a model, for the people who decide on its release.

    The page is made from report.json, which is written beside it.

    Args:
        model (DIR|SOURCE): model folder, or a network by its source; all other inputs must belong
            to this model
        runs (JSON): results of segunc evaluate: on plain frames, on corrupted frames, with --flag
            threshold.json, or from verdicts
        maps (DIR): maps folders; with labels, the page shows pictures of failures from them
        threshold (JSON): thresholds that segunc threshold wrote
        monitor (JSON): state that segunc monitor --out wrote
        latency (JSON): seconds for each frame, as measured and written by tools/latency.py
        domain (YAML): file with the intended use and the operating domain; frames are counted in
            each cell of the domain, such as rain at dusk
        out (DIR): folder to write, with report.json and the page index.html
    """

    model: ModelFolder
    runs: Sequence[File] | None = None
    maps: Sequence[FolderOrUrl] | None = None
    threshold: Sequence[File] | None = None
    monitor: File | None = None
    latency: Sequence[File] | None = None
    domain: File | None = None
    out: Folder


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options, SourceOptions):
    """Write a model as one file for other runtimes, or score maps as the files of a benchmark.

    A model file predicts and scores a frame without this package. A float32 file is kept only if
    its maps equal those of the sampler, up to rounding. What a lower precision changes is measured.

    Args:
        model (DIR|SOURCE): model folder, or a network by its source, of which a model file is
            made
        to: format. Of a model: onnx for ONNX Runtime and other runtimes; triton for the same file
            in a model folder of Triton Inference Server; openvino for OpenVINO, in a lower
            precision; pt2 for torch.export. Of maps: smiyc for
            SegmentMeIfYouCan; fishyscapes for Fishyscapes
        out (DIR): folder to write: the model file and model.json, or the files of the benchmark
        maps (DIR): maps folder, of which the files of a benchmark are made
        score (NAME): with --maps, score whose maps the benchmark gets (default: anomaly if there
            are maps of it, otherwise entropy)
        method (NAME): with --to smiyc, name of your method on the board (default segunc)
        track (NAME): with --to smiyc, name of the data set in the benchmark's code (default
            AnomalyTrack-all)
        draws (S): number of sampled networks (default 8)
        seed: random seed of the draws (default 0)
        draws_as_input: make the draws a second input of the file, and write them to draws.npy
        size (HxW|dynamic): height and width of the frames, which the file fixes (default: the
            inference size of the network), or dynamic for frames of any size
        scores (A,B): scores that the file gives beside the prediction (default: those that predict
            writes by default)
        batch (N): number of frames in a call (default 1)
        input: what the file takes: float32 images of the network's size with values 0..1, or uint8
            frames as a camera gives them, which the file resizes as predict does (default float32)
        frame_size (HxW): with --input uint8, height and width of the frames, which the maps get,
            too (default: --size)
        threshold (JSON): threshold.json of segunc threshold. The file then also gives flagged, the
            mask of the pixels at or above it, and model.json holds its promise
        check_in: of a float32 ONNX file, a further runtime in which it is compared with the
            sampler. The file is written only if its maps are right there, too (default: ONNX
            Runtime alone)
        precision: of the network in the file. What float16 and int8 cost in each score is measured
            and recorded (default float32)
        calibration (FRAMES): with --precision int8, frames on which the range of each layer is
            measured: a folder, a glob pattern or a video. At least 8 for the ranges, and as many
            for the price unless --check-frames gives these
        calibration_frames (N): how many of them are taken, spread evenly, and how many for the
            price (default 32)
        check_frames (FRAMES): frames on which the price of a lower precision is measured, at least
            8; float16 needs them (default: with int8, every second frame of --calibration, which
            is then not used for ranges)
        max_changed (SHARE): with a lower precision, the largest share of pixels whose predicted
            class may change; a file that changes more is not written (default 0.05)
    """

    model: ModelFolder | None = None
    to: Literal["onnx", "triton", "openvino", "pt2", "smiyc", "fishyscapes"]
    out: Folder
    maps: FolderOrUrl | None = None
    score: str | None = None
    method: str | None = None
    track: str | None = None
    draws: Count = 8
    seed: Seed = 0
    draws_as_input: bool = False
    size: Annotated[tuple[Side, Side] | Literal["dynamic"], size_or_dynamic] | None = None
    scores: Names | None = None
    batch: Count = 1
    input: Literal["float32", "uint8"] = "float32"
    frame_size: Size | None = None
    threshold: File | None = None
    check_in: Literal["openvino"] | None = None
    precision: Literal["float32", "float16", "int8"] = "float32"
    calibration: PathLike | None = None
    calibration_frames: PositiveInt | None = None
    check_frames: PathLike | None = None
    max_changed: UnitInterval | None = None


@dataclass(frozen=True)
class DoctorOptions(SamplingOptions, SourceOptions):
    """Check that the draws of a model differ and that its conversion is exact.

    Args:
        model (DIR|SOURCE): model folder, or a network by its source
        image (FILE): a clean frame (default: a toy road scene)
    """

    model: ModelFolder
    image: File | None = None
