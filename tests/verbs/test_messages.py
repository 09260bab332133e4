"""What each refused command says, word by word: ``messages.txt`` holds commands, each with its exit
code and its one line.

After a change of words, ``SEGUNC_MESSAGES=write pytest tests/verbs/test_messages.py`` writes the
file anew; read what changed.
"""

import os
import re
import shutil
from pathlib import Path

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


def test_every_refusal_is_one_line_of_these_words(predicted: Job, tmp_path: Path) -> None:
    places = {
        name.upper(): getattr(predicted, name)
        for name in ("abnn", "base", "frames", "masks", "maps", "data")
    }
    places |= {
        "TRAIN": predicted.train_config,
        "TUNE": predicted.finetune_config,
        "VIDEO": predicted.video,
    }
    places |= {
        "WEIGHTS": predicted.base / "network.safetensors",
        "OUT": tmp_path / "out",
        "TMP": tmp_path,
    }
    places |= {
        "RESULT": write_result(tmp_path / "a.json", {}),
        "NOWHERE": tmp_path / "nowhere.yaml",
    }
    places["NOWHERE"].write_text(REESTIMATED)
    # A network that came without its data, as an imported one does.
    places["BARE"] = Path(
        shutil.copytree(
            predicted.base,
            tmp_path / "bare",
            ignore=shutil.ignore_patterns("data.json", "train.yaml"),
        )
    )
    found = [TITLE]
    for command in COMMANDS:
        words = [str(places.get(word, word)).replace("\\0", "\0") for word in command.split(" ")]
        done = segunc(*([] if command == "NOTHING" else words))
        assert len(done.error_lines) == 1, (command, done)
        (line,) = done.error_lines
        for name, path in sorted(places.items(), key=lambda item: -len(str(item[1]))):
            line = line.replace(str(path), name)
        for pattern, shorter in SHORTER:
            line = re.sub(pattern, shorter, line)
        # Nothing was started: a later, right command finds no half-made folder that it would have
        # to explain.
        assert not (tmp_path / "out").exists(), command
        found.append(f"{command}\n{done.code}: {line}\n")
    text = "\n$ ".join(found)
    if os.environ.get("SEGUNC_MESSAGES") == "write":
        MESSAGES.write_text(text, encoding="utf-8")
    assert text == MESSAGES.read_text(encoding="utf-8")
