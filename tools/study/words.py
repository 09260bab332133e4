"""What a cell is asked for: settings, evaluations, bases."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from segunc.cli.parser import reader_of
from segunc.core.errors import InputError
from segunc.core.files import read_json
from segunc.options import EvaluateOptions
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import model_files
from segunc.training.config import (
    HISTORY,
    Config,
    FinetuneConfig,
    FitConfig,
    dump_config,
    parse_config,
)

VARIABLE = re.compile(r"\$\{?(\w+)")
"""The name of a variable of the environment, where a text uses one."""


def evaluation_words(options: Mapping[str, Any], *, expanded: bool = True) -> list[str]:
    """Options of ``segunc evaluate`` as words of its command line; with variables of the
    environment, or their names.
    """
    words: list[str] = []
    for key, value in options.items():
        option = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value else []
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [option, expand(text) if key == "root" and expanded else text]
    return words


def evaluate_options(
    model: Path, out: Path, options: Mapping[str, Any], device: str
) -> EvaluateOptions:
    """Options of ``segunc evaluate``, where a text stands for what the command line would read it
    as.

    Raises:
        InputError: an unknown option, or a value that it cannot have.
    """
    known, read = get_type_hints(EvaluateOptions, include_extras=True), dict[str, Any]()
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in known:
            raise InputError(
                f"there is no evaluation option '{key}'", hint=f"choose from {', '.join(known)}"
            )
        if isinstance(value, bool):  # a flag; YAML also reads `on` so
            read |= {name: True} if value else {}
            continue
        _, parse = reader_of(known[name])
        try:
            read[name] = parse(value) if parse is not None and isinstance(value, str) else value
        except ArgumentTypeError as error:
            raise InputError(f"evaluation option {key}: {error}") from error
    if "root" in read:
        read["root"] = expand(read["root"])
    if "flag" in read:
        words = (word.replace("{cell}", str(out.parent)) for word in read["flag"])
        read["flag"] = [value for word in words for value in values_of(word, read.get("scores"))]
    return EvaluateOptions(model=model, out=out, device=device, **read)


def values_of(word: str, scores: Sequence[str] | None) -> list[str]:
    """``SCORE=VALUE`` of each of some scores (None: all) for ``RESULT.json:RECALL``, its thresholds
    of this recall of anomaly pixels; another word of ``flag``, and one of a result that is still to
    come, alone.
    """
    of_result = re.fullmatch(r"(.+\.json):(0\.\d+)", word)
    if of_result is None or not Path(of_result[1]).is_file():
        return [word]
    found = read_json(Path(of_result[1]), "a result of segunc evaluate")["scores"]
    chosen = {
        name: found[name]["pooled"]["thresholds"][of_result[2]]
        for name in found
        if scores is None or name in scores
    }
    return [f"{name}={value!r}" for name, value in chosen.items() if value is not None]


def answers(made: Any, asked: Any) -> bool:
    """Whether what was made is what is asked for, where a variable of the environment (``$NAME``)
    may have had any value.
    """
    if isinstance(asked, Mapping):
        return (
            isinstance(made, Mapping)
            and made.keys() == asked.keys()
            and all(answers(made[k], asked[k]) for k in asked)
        )
    if isinstance(asked, list | tuple):
        return isinstance(made, list) and len(made) == len(asked) and all(map(answers, made, asked))
    return (isinstance(asked, str) and "$" in asked) or bool(made == asked)


def expand(text: str) -> str:
    """``$NAME`` and ``${NAME}`` replaced by variables of the environment.

    Raises:
        InputError: a variable is not set.
    """
    unset = [name for name in VARIABLE.findall(text) if name not in os.environ]
    if unset:
        raise InputError(
            f"'{text}' needs ${unset[0]}, which is not set", hint=f"export {unset[0]}=..."
        )
    return os.path.expandvars(text)


def without_folders(text: str, asked: str) -> str:
    """The text of a JSON file in which each variable of the environment that ``asked`` uses stands
    for the folder or file that it names, as :func:`answers` reads it; others than absolute paths
    say nothing of a machine, and stay.
    """
    values = {
        json.dumps(os.environ.get(name, ""))[1:-1]: f"${name}" for name in VARIABLE.findall(asked)
    }
    for value in sorted(filter(os.path.isabs, values), key=len, reverse=True):
        text = text.replace(value, values[value])
    return text


def check_settings(method: str, config: dict[str, Any], where: str) -> None:
    """Refuse settings that ``segunc finetune`` would refuse.

    Args:
        method: of it.
        config: content of a configuration.
        where: it stands, for the message.

    Raises:
        InputError: an unknown key or a value of the wrong type.
    """
    entry = METHODS[method]
    kind: type[Config] = FitConfig if entry.finished else FinetuneConfig
    with tempfile.TemporaryDirectory(prefix="segunc-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(dump_config(config), encoding="utf-8")
        try:
            parse_config(kind, path, [], entry.config, data=entry.data)
        except InputError as error:
            raise error.within(where) from error


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 over the files that make a model.

    Its history, which holds dates and paths, is left out: a base that the same command makes again
    has the same fingerprint.
    """
    digest = hashlib.sha256()
    for path in model_files(folder):
        if path.name == HISTORY:
            continue
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
