"""``segunc doctor --maps``: silent damage is found, named and made again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from segunc.cli.main import main
from segunc.maps.shards import seal
from tests.conftest import Job
from tests.verbs.test_interrupted import tree


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("parts", [["--draws", "4", "--seed", "3", "--size", "64x128", "--overlay"], ["--shard"]])
def test_a_flipped_bit_is_found_and_repaired(
    finetuned: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: list[str]
) -> None:
    out = tmp_path / "maps"
    words = ["predict", "--model", str(finetuned.abnn), "--input", str(finetuned.frames), "--out", str(out)]
    words += ["--device", "cpu", "--draws", "4"]
    for more in (["--shard", "1/2"], ["--shard", "2/2"]) if parts == ["--shard"] else (parts,):
        assert main([*words, *more]) == 0
    before = tree(out)
    doctor = ["doctor", "--maps", str(out)]
    assert main(doctor) == 0
    assert capsys.readouterr().out.endswith("the maps are what was written\n")
    victim = sorted((out / "entropy").rglob("*.png"))[1]
    flip(victim)
    assert main(doctor) == 1
    said = capsys.readouterr()
    assert f"({victim.relative_to(out)})" in said.out
    assert len(said.err.splitlines()) == 1
    assert "1 frames are not what was written; make it again: `segunc doctor" in said.err
    assert main([*doctor, "--repair"]) == 0
    assert "1 were damaged and are made again" in capsys.readouterr().out
    assert tree(out) == before
    assert main(doctor) == 0


def test_what_cannot_be_repaired_says_so(
    finetuned: Job, predicted: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(predicted.maps, tmp_path / "maps"))
    path = out / "manifest.json"
    whole = path.read_text()
    path.write_text(whole.replace('"draws": ', '"draws": 1'))
    assert main(["doctor", "--maps", str(out), "--repair"]) == 2
    assert "manifest.json was changed since it was written" in capsys.readouterr().err
    path.write_text(json.dumps(seal({k: v for k, v in json.loads(whole).items() if k not in ("sha256", "command")})))
    sorted((out / "entropy").rglob("*.png"))[0].unlink()
    assert main(["doctor", "--maps", str(out), "--repair"]) == 2
    assert (
        "records no command of this version of segunc. Hint: run its predict command again" in capsys.readouterr().err
    )
    assert main(["doctor", "--maps", str(tmp_path)]) == 1
    assert main(["doctor", "--maps", str(finetuned.frames)]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err
