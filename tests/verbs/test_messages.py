"""What each refused command says, word by word: ``messages.txt`` holds commands, each with its exit
code and its one line.

After a change of words, ``SEGUNC_MESSAGES=write pytest tests/verbs/test_messages.py`` writes the
file anew; read what changed.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Job
from tests.evaluation.runs import write_result
from tests.verbs.processes import segunc

MESSAGES = Path(__file__).with_name("messages.txt")
TITLE, *BLOCKS = MESSAGES.read_text(encoding="utf-8").split("\n$ ")
COMMANDS = [block.partition("\n")[0] for block in BLOCKS]
REESTIMATED = "data: {dataset: toy, root: nowhere}\nabnn: {members: 2, statistics: reestimated}\n"
SHORTER = [
    (r" \(choose from .*?\)", ""),
    (r"the \d+ CUDA devices", "the N CUDA devices"),
    (r" names are: [a-z, ]*\.", " names."),
]
"""What another version of Python, another machine or another process says otherwise."""


@pytest.fixture
def places(predicted: Job, tmp_path: Path) -> dict[str, Path]:
    """The path that each word in capitals of a command stands for."""
    unread = tmp_path / "nowhere.yaml"
    unread.write_text(REESTIMATED)
    # A network that came without its data, as an imported one does.
    bare = tmp_path / "bare"
    without_data = shutil.ignore_patterns("data.json", "train.yaml")
    shutil.copytree(predicted.base, bare, ignore=without_data)
    return {
        "ABNN": predicted.abnn,
        "BASE": predicted.base,
        "FRAMES": predicted.frames,
        "MASKS": predicted.masks,
        "MAPS": predicted.maps,
        "DATA": predicted.data,
        "TRAIN": predicted.train_config,
        "TUNE": predicted.finetune_config,
        "VIDEO": predicted.video,
        "WEIGHTS": predicted.base / "network.safetensors",
        "OUT": tmp_path / "out",
        "TMP": tmp_path,
        "RESULT": write_result(tmp_path / "a.json", {}),
        "NOWHERE": unread,
        "BARE": bare,
    }


def words_of(command: str, places: dict[str, Path]) -> list[str]:
    if command == "NOTHING":
        return []
    words = []
    for word in command.split(" "):
        text = str(places.get(word, word))
        words.append(text.replace("\\0", "\0"))
    return words


def as_written(line: str, places: dict[str, Path]) -> str:
    """Return a refusal with the words in capitals in the place of paths, the longest first."""
    longest_first = sorted(places, key=lambda name: len(str(places[name])), reverse=True)
    for name in longest_first:
        line = line.replace(str(places[name]), name)
    for pattern, shorter in SHORTER:
        line = re.sub(pattern, shorter, line)
    return line


def test_every_refusal_is_one_line_of_these_words(places: dict[str, Path]) -> None:
    blocks = [TITLE]
    for command in COMMANDS:
        done = segunc(*words_of(command, places))
        assert len(done.error_lines) == 1, (command, done)
        # Nothing was started: a later, right command finds no half-made folder that it would have
        # to explain.
        assert not places["OUT"].exists(), command
        line = as_written(done.error_lines[0], places)
        blocks.append(f"{command}\n{done.code}: {line}\n")
    text = "\n$ ".join(blocks)
    if os.environ.get("SEGUNC_MESSAGES") == "write":
        MESSAGES.write_text(text, encoding="utf-8")
    assert text == MESSAGES.read_text(encoding="utf-8")
