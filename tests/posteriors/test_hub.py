"""Models on the Hub. A server on this machine speaks its protocol; no test connects elsewhere."""

from __future__ import annotations

import doctest
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import segunc
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import read_record, write_record
from segunc.data.images import load_image
from segunc.posteriors import hub_download
from segunc.posteriors.hub_download import chosen_names
from segunc.posteriors.hub_records import strip_places
from segunc.posteriors.model import ATTACHMENTS, Model, load_model
from tests.conftest import Job, change_record
from tests.support.hub_server import READER, TOKEN, Hub, point_client_at, serve
from tests.verbs.processes import refuse, succeed

huggingface_hub = pytest.importorskip("huggingface_hub")

NAME = "owner/roads"
CARD_ONLY = {"README.md", ".gitattributes"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, and a client that knows no other and has an empty cache and the token of the owner."""
    with serve() as server:
        point_client_at(server, tmp_path, monkeypatch)
        yield server
        assert server.unknown == []


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder as a repository holds them."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


@pytest.fixture
def pushed(hub: Hub, finetuned: Job) -> Hub:
    """A hub that holds the fine-tuned model."""
    segunc.load(finetuned.abnn).push_to_hub(NAME)
    return hub


@pytest.fixture(scope="module")
def image(finetuned: Job) -> np.ndarray[Any, Any]:
    return load_image(sorted(finetuned.frames.rglob("*.png"))[0])


LOAD = """
import sys
import numpy as np
from segunc.data.images import load_image
import segunc
model = segunc.Model.from_pretrained(sys.argv[1])
maps = model(load_image(sys.argv[2]), draws=4)
np.savez(sys.argv[3], prediction=maps.prediction, entropy=maps.entropy)
"""


@pytest.mark.slow
def test_another_process_loads_the_same_model_by_its_name(
    pushed: Hub, finetuned: Job, image: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    frame = sorted(finetuned.frames.rglob("*.png"))[0]
    out = tmp_path / "maps.npz"
    done = subprocess.run(
        [sys.executable, "-c", LOAD, NAME, str(frame), str(out)],
        env=pushed.environment(tmp_path / "other-cache"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    expected = segunc.load(finetuned.abnn)(image, draws=4)
    with np.load(out) as maps:
        assert np.array_equal(maps["prediction"], expected.prediction)
        assert np.array_equal(maps["entropy"], expected.entropy)


def test_the_commit_is_remembered_and_travels_with_the_saved_model(
    pushed: Hub, tmp_path: Path
) -> None:
    model = Model.from_pretrained(NAME)
    origin = {"repository": NAME, "revision": pushed.repos[NAME].refs["main"]}
    assert model.network.description.provenance["hub"] == origin
    model.save(tmp_path / "saved")
    assert segunc.load(tmp_path / "saved").network.description.provenance["hub"] == origin


def test_the_hub_holds_the_files_of_save_and_a_card(
    pushed: Hub, finetuned: Job, tmp_path: Path
) -> None:
    segunc.load(finetuned.abnn).save(tmp_path / "saved")
    saved = files_of(tmp_path / "saved")
    there = pushed.repos[NAME].files()
    assert there.keys() - CARD_ONLY == saved.keys()
    same = {name for name in saved if there[name] == saved[name]}
    assert saved.keys() - same == {"data.json", "history.json"}


def test_no_pushed_byte_names_a_place_of_this_machine(
    hub: Hub, finetuned: Job, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    segunc.load(finetuned.abnn).save(folder)
    change_record(
        folder / "posterior.json",
        provenance={"note": f"data of {finetuned.data}/x.csv", "inner": [str(tmp_path)]},
    )
    places = [str(finetuned.data.parent), str(tmp_path), str(Path.home())]
    assert any(place.encode() in data for data in files_of(folder).values() for place in places)
    segunc.load(folder).push_to_hub(NAME)
    for name, data in hub.repos[NAME].files().items():
        for place in places:
            assert place.encode() not in data, name
    loaded = Model.from_pretrained(NAME)
    assert loaded.record["provenance"] == {"note": "data of x.csv", "inner": [tmp_path.name]}
    assert json.loads(hub.repos[NAME].files()["data.json"])["dataset"] == "toy"


def test_fitted_frames_of_a_folder_keep_only_its_name(finetuned: Job, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    segunc.load(finetuned.abnn).save(folder)
    sealed = {"base_sha256": "0", "fitted_on": {"dataset": f"toy:{tmp_path}/frames"}}
    write_record(folder / "features.json", sealed)
    strip_places(folder)
    record = read_record(folder / "features.json", "")
    assert record["fitted_on"]["dataset"] == "toy:frames"


def test_a_path_that_decides_what_the_model_is_is_refused(hub: Hub, tmp_path: Path) -> None:
    body = nn.Conv2d(3, 4, 1)
    model = segunc.wrap(body, ("a", "b", "c", "d"))
    folder = tmp_path / "model"
    description = model.network.description
    model.network.description = type(description)(
        **{**vars(description), "architecture": "x.y:z", "options": {"arguments": {"file": "/k/f"}}}
    )
    model.save(folder)
    model.folder = folder
    with pytest.raises(InputError, match=r"network\.json names '/k/f', a place of this machine"):
        model.push_to_hub(NAME)
    assert hub.repos == {}  # checked before anything is made


def test_revisions(pushed: Hub, finetuned: Job) -> None:
    first = pushed.repos[NAME].refs["main"]
    pushed.repos[NAME].refs["v1"] = first
    segunc.load(finetuned.base).push_to_hub(NAME, commit_message="Only the base")
    assert Model.from_pretrained(NAME, revision="v1").bayesian
    assert Model.from_pretrained(NAME, revision=first).bayesian
    assert not Model.from_pretrained(NAME).bayesian
    assert pushed.repos[NAME].messages[-1] == "Only the base"
    with pytest.raises(InputError, match="owner/roads has no revision 'v9'"):
        Model.from_pretrained(NAME, revision="v9")


def test_files_of_a_former_model_go_and_others_stay(pushed: Hub, finetuned: Job) -> None:
    repo = pushed.repos[NAME]
    more = {"LICENSE": b"text", "examples/network.json": b"{}", "calibration.json": b"{}"}
    repo.commit({**repo.files(), **more})
    segunc.load(finetuned.base).push_to_hub(NAME)
    assert repo.files().keys() - CARD_ONLY == {
        *("network.json", "network.safetensors", "data.json", "history.json"),
        *("LICENSE", "examples/network.json"),
    }


def test_patterns_are_those_of_the_client(pushed: Hub, finetuned: Job) -> None:
    repo = pushed.repos[NAME]
    before = repo.files()
    model = segunc.load(finetuned.base)
    model.push_to_hub(NAME, allow_patterns="README.md", license="mit")
    changed = {name for name, data in repo.files().items() if before.get(name) != data}
    assert changed == {"README.md"}
    assert before.keys() == repo.files().keys()
    model.push_to_hub(NAME, ignore_patterns=["*.json"], delete_patterns=["history.json"])
    assert before.keys() - repo.files().keys() == {"history.json"}


def test_a_branch_is_made_and_a_pull_request_is_opened(pushed: Hub, finetuned: Job) -> None:
    repo = pushed.repos[NAME]
    main = repo.refs["main"]
    model = segunc.load(finetuned.base)
    address = model.push_to_hub(NAME, branch="base")
    assert address == f"{pushed.url}/{NAME}/commit/{repo.refs['base']}"
    assert not Model.from_pretrained(NAME, revision="base").bayesian
    model.push_to_hub(NAME, create_pr=True)
    assert "posterior.json" not in repo.files("refs/pr/1")
    assert repo.refs["main"] == main


def test_a_private_repository_needs_a_token(hub: Hub, finetuned: Job) -> None:
    segunc.load(finetuned.abnn).push_to_hub(NAME, private=True)
    assert hub.repos[NAME].private
    assert Model.from_pretrained(NAME, token=TOKEN).bayesian
    for token in (False, READER):
        with pytest.raises(InputError) as caught:
            Model.from_pretrained(NAME, token=token, cache_dir=f"{finetuned.abnn}-{token}")
        assert str(caught.value) == (
            "there is no folder and no model 'owner/roads' on the Hub, or it is private and this "
            "token may not read it. Hint: check the name, log in with hf auth login, or set the "
            "variable HF_TOKEN"
        )
    with pytest.raises(InputError, match=r"refuses this token for 'owner/roads' \(status 401\)"):
        Model.from_pretrained(NAME, token="hf_wrong")


def test_a_public_repository_is_not_taken_for_a_private_one(pushed: Hub, finetuned: Job) -> None:
    before = dict(pushed.repos[NAME].refs)
    with pytest.raises(InputError, match="is there already and is public, although `private`"):
        segunc.load(finetuned.base).push_to_hub(NAME, private=True)
    assert pushed.repos[NAME].refs == before


def test_a_token_that_may_not_write_is_refused(hub: Hub, finetuned: Job) -> None:
    with pytest.raises(InputError, match=r"refuses this token for 'owner/roads' \(status 403\)"):
        segunc.load(finetuned.base).push_to_hub(NAME, token=READER)


def test_a_gated_repository_says_how_access_is_given(pushed: Hub) -> None:
    pushed.repos[NAME].gated = True
    with pytest.raises(InputError, match="the owner of 'owner/roads' gives access on request"):
        Model.from_pretrained(NAME, token=False)
    assert Model.from_pretrained(NAME, token=TOKEN).bayesian


def test_what_is_missing_is_said(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder and no model 'owner/none' on the Hub"):
        Model.from_pretrained("owner/none")
    for source in (tmp_path / "none", str(tmp_path / "none"), "./none", "a/b/c", ""):
        with pytest.raises(InputError, match="there is no model folder"):
            Model.from_pretrained(source)
    with pytest.raises(InputError, match="is no name on the Hub"):
        Model.from_pretrained("owner/..bad--name")
    hub.repo("owner/bert", {"config.json": b"{}", "pytorch_model.bin": b"0"})
    with pytest.raises(InputError, match="is no model of segunc: it has no network") as caught:
        Model.from_pretrained("owner/bert")
    assert "pytorch_model.bin" in caught.value.hint
    assert hub.downloaded() == set()


def test_a_folder_comes_first_and_asks_nobody(hub: Hub, finetuned: Job) -> None:
    assert Model.from_pretrained(finetuned.abnn).bayesian
    assert Model.from_pretrained(str(finetuned.base)).posterior_sha256 is None
    with pytest.raises(InputError, match="is a folder, which has no revisions"):
        Model.from_pretrained(finetuned.abnn, revision="v1")
    assert hub.requests == []


def test_a_missing_file_of_a_model_is_named(pushed: Hub) -> None:
    repo = pushed.repos[NAME]
    files = repo.files()
    del files["posterior.safetensors"]
    repo.commit(files)
    with pytest.raises(InputError, match=r"'owner/roads' on the Hub: .*posterior\.safetensors"):
        Model.from_pretrained(NAME)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("network.safetensors", "has the hash .* records"),
        ("posterior.safetensors", "has changed since posterior.json was written"),
        ("posterior.json", "has changed since it was written"),
    ],
)
def test_a_damaged_file_is_refused_by_its_hash(pushed: Hub, name: str, message: str) -> None:
    repo = pushed.repos[NAME]
    files = repo.files()
    if name.endswith(".json"):
        damaged = files[name].replace(b'"members": 2', b'"members": 3')
    else:
        damaged = bytearray(files[name])
        damaged[-1] ^= 1
    assert damaged != files[name]
    repo.commit({**files, name: bytes(damaged)})
    with pytest.raises(InputError, match=message):
        Model.from_pretrained(NAME)


def test_a_file_that_is_cut_off_in_the_cache_is_downloaded_again(
    pushed: Hub, tmp_path: Path
) -> None:
    Model.from_pretrained(NAME)
    (weights,) = (tmp_path / "cache").glob("models--*/snapshots/*/network.safetensors")
    blob = weights.resolve()
    whole = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(whole[:-10])
    with pytest.raises(InputError, match=r"network\.safetensors .* is incomplete in the cache"):
        Model.from_pretrained(NAME)
    assert Model.from_pretrained(NAME, force_download=True).bayesian


def test_without_a_connection_the_cache_is_read(pushed: Hub, tmp_path: Path) -> None:
    expected = Model.from_pretrained(NAME).posterior_sha256
    asked = len(pushed.requests)
    model = Model.from_pretrained(NAME, local_files_only=True)
    assert model.posterior_sha256 == expected
    assert len(pushed.requests) == asked
    pushed.broken = 503
    with pytest.warns(NoteWarning, match="the Hub cannot be reached for 'owner/roads', so the"):
        assert Model.from_pretrained(NAME).posterior_sha256 == expected
    with pytest.raises(InputError, match="the Hub cannot be reached"):
        Model.from_pretrained(NAME, force_download=True)
    for more in ({"cache_dir": tmp_path / "empty"}, {"revision": "v1"}):
        with pytest.raises(InputError, match="the cache of the Hub does not hold the whole model"):
            Model.from_pretrained(NAME, local_files_only=True, **more)


def test_a_closed_port_is_one_sentence(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with (
        pytest.warns(NoteWarning, match="cannot be reached"),
        pytest.raises(InputError, match="does not hold the whole model"),
    ):
        Model.from_pretrained(NAME)


def test_the_offline_mode_of_the_client_reads_the_cache_without_a_note(
    pushed: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    Model.from_pretrained(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoteWarning)
        assert Model.from_pretrained(NAME).bayesian
    with pytest.raises(InputError, match="the Hub cannot be reached"):
        Model.from_pretrained(NAME).push_to_hub(NAME)


def test_a_complete_folder_is_not_written_again(pushed: Hub) -> None:
    folder = Path(str(Model.from_pretrained(NAME).folder))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert Model.from_pretrained(NAME, local_files_only=True).bayesian
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
def test_processes_load_a_model_at_the_same_time(
    pushed: Hub, finetuned: Job, tmp_path: Path
) -> None:
    frame = str(sorted(finetuned.frames.rglob("*.png"))[0])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, NAME, frame, str(tmp_path / f"{number}.npz")],
            env=pushed.environment(tmp_path / "cache"),
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error


def test_what_was_written_into_the_cache_is_no_part_of_the_model(pushed: Hub) -> None:
    folder = Path(str(Model.from_pretrained(NAME).folder))
    (folder / "calibration.json").write_text("{}")
    for more in ({}, {"local_files_only": True}):
        with pytest.raises(InputError, match=r"calibration\.json was written into the cache"):
            Model.from_pretrained(NAME, **more)


def test_a_cache_that_another_tool_filled_is_enough(pushed: Hub) -> None:
    huggingface_hub.snapshot_download(NAME)
    assert Model.from_pretrained(NAME, local_files_only=True).bayesian


def test_an_interrupted_download_is_no_model(pushed: Hub) -> None:
    repo = pushed.repos[NAME]
    repo.commit({**repo.files(), "features.json": b"{}"})
    huggingface_hub.snapshot_download(NAME, allow_patterns=["network.*", "posterior.*"])
    with pytest.raises(InputError, match="does not hold the whole model"):
        Model.from_pretrained(NAME, local_files_only=True)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_only_files_of_a_model_are_downloaded_and_none_of_them_runs(
    pushed: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    repo = pushed.repos[NAME]
    trap = pickle.dumps(Trap())
    foreign = {
        "pytorch_model.bin": trap,
        "network.pt": trap,
        "model.py": b"import os; os.mkdir('ran')",
        "sub/network.json": b"{}",
        "posterior.pkl": trap,
        "members/../../network.json": b"{}",
        "../evil.json": b"{}",
    }
    repo.commit({**repo.files(), **foreign})
    assert Model.from_pretrained(NAME).bayesian
    assert pushed.downloaded() <= repo.files().keys() - foreign.keys() - CARD_ONLY
    folder = Path(str(Model.from_pretrained(NAME).folder))
    assert files_of(folder).keys() == {
        *("network.json", "network.safetensors", "posterior.json", "posterior.safetensors"),
        *("data.json", "history.json"),
    }
    assert not Path("ran").exists()
    repo.commit({**repo.files(), "network.safetensors": trap})
    with pytest.raises(InputError, match=r"network\.safetensors"):
        Model.from_pretrained(NAME)
    assert not Path("ran").exists()


def test_code_that_a_repository_names_does_not_run(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_net.py").write_text(
        "import os\nfrom torch import nn\nos.mkdir('ran')\ndef build(): return nn.Conv2d(3, 4, 1)\n"
    )
    classes = ("a", "b", "c", "d")
    model = segunc.wrap(nn.Conv2d(3, 4, 1), classes, factory="their_net:build")
    model.push_to_hub(NAME)
    assert "their_net:build" in hub.repos[NAME].files()["README.md"].decode()
    # As on a machine of somebody else: without the agreement of the owner, whose code ran.
    shutil.rmtree(tmp_path / "config")
    Path("ran").rmdir()
    monkeypatch.delitem(sys.modules, "their_net")
    with pytest.raises(InputError, match="does not run, as nobody agreed to it on this machine"):
        Model.from_pretrained(NAME)
    assert not Path("ran").exists()
    monkeypatch.setenv("SEGUNC_TRUST", f"their_net:build@{tmp_path}")
    assert Model.from_pretrained(NAME).sha256 == model.sha256
    assert Path("ran").exists()


def test_no_link_is_in_the_folder_and_a_link_out_of_the_cache_is_refused(
    pushed: Hub, tmp_path: Path
) -> None:
    folder = Path(str(Model.from_pretrained(NAME).folder))
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    snapshot = folder.parents[1] / "snapshots" / folder.name
    assert (snapshot / "posterior.json").is_symlink()  # as the client stores it
    secret = tmp_path / "secret"
    secret.write_bytes((snapshot / "history.json").read_bytes())
    (snapshot / "history.json").unlink()
    (snapshot / "history.json").symlink_to(secret)
    with pytest.raises(InputError, match="leads out of the cache"):
        Model.from_pretrained(NAME)


def test_a_strangers_data_record_names_no_folder_here(pushed: Hub, tmp_path: Path) -> None:
    repo = pushed.repos[NAME]
    data = {"dataset": "toy", "root": str(tmp_path), "labels": "/etc/x.csv", "frames": "a.csv"}
    repo.commit({**repo.files(), "data.json": json.dumps(data).encode()})
    folder = Path(str(Model.from_pretrained(NAME).folder))
    assert json.loads((folder / "data.json").read_text()) == {"dataset": "toy"}


def test_sizes_are_bounded_before_a_download(pushed: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_download, "MAX_RECORD_BYTES", 100)
    with pytest.raises(InputError, match=r"bytes; a record of segunc has at most 100"):
        Model.from_pretrained(NAME)
    monkeypatch.setattr(hub_download, "MAX_RECORD_BYTES", 10**7)
    monkeypatch.setattr(hub_download, "MAX_FILES", 3)
    with pytest.raises(InputError, match="has 6 files, more than 3"):
        Model.from_pretrained(NAME)
    assert pushed.downloaded() == set()


def test_what_is_fitted_on_a_model_travels_and_what_nobody_knows_is_refused(
    hub: Hub, finetuned: Job, tmp_path: Path
) -> None:
    fitted = tmp_path / "fitted"
    base = ("--base", finetuned.abnn, "--out", fitted)
    data = ("--data.dataset", "toy", "--data.root", finetuned.data)
    succeed("finetune --method features --device cpu", *base, *data)
    model = segunc.load(fitted)
    model.push_to_hub(NAME)
    loaded = Model.from_pretrained(NAME)
    assert loaded.attachments == model.attachments
    image = np.zeros((64, 128, 3), np.uint8)
    knn = [m(image, draws=2, scores=["knn"]).scores["knn"] for m in (model, loaded)]
    assert np.array_equal(*knn)
    repo = hub.repos[NAME]
    unknown = repo.files()["features.json"]
    repo.commit({**repo.files(), "novelty.json": unknown})
    with pytest.raises(InputError, match="by a package that is not installed"):
        Model.from_pretrained(NAME)


def test_an_ensemble_travels(hub: Hub, finetuned: Job, tmp_path: Path) -> None:
    out = tmp_path / "ensemble"
    bases = ("--base", finetuned.base, finetuned.abnn)
    succeed("finetune --method ensemble", *bases, "--out", out)
    segunc.load(out).push_to_hub(NAME)
    assert "members/1/posterior.safetensors" in hub.repos[NAME].files()
    loaded = Model.from_pretrained(NAME)
    assert loaded.posterior_sha256 == segunc.load(out).posterior_sha256
    assert loaded.network.description.provenance["hub"]["repository"] == NAME
    segunc.load(finetuned.base).push_to_hub(NAME)
    assert not any(name.startswith("members/") for name in hub.repos[NAME].files())
    assert not Model.from_pretrained(NAME).bayesian


def test_a_module_is_handed_to_load(
    pushed: Hub, finetuned: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def load(folder: Path, **more: Any) -> Model:
        given.append(more)
        return load_model(finetuned.base)

    monkeypatch.setattr("segunc.posteriors.model.load_model", load)
    module = nn.Conv2d(3, 4, 1)
    Model.from_pretrained(NAME, network=module)
    Model.from_pretrained(NAME)
    assert given == [{"network": module}, {}]


def test_names_of_files() -> None:
    names = [
        *("README.md", "network.json", "network.safetensors", "posterior.json", "features.json"),
        *("features.safetensors", "other.safetensors", "config.json", ".hidden.json", "a/b.json"),
        *("members/0/network.json", "members/0/features.json", "members/x/network.json"),
        *("members/0/members/1/network.json", "network.json.exe", "network.pt"),
    ]
    chosen = chosen_names(names, ATTACHMENTS)
    assert chosen[-2:] == ["posterior.json", "network.json"]
    assert set(chosen) == {
        *("network.json", "network.safetensors", "posterior.json", "features.json"),
        *("features.safetensors", "config.json", "members/0/network.json"),
    }


def test_save_pretrained_writes_what_would_be_pushed(
    pushed: Hub, finetuned: Job, tmp_path: Path
) -> None:
    model = segunc.load(finetuned.abnn)
    out = tmp_path / "roads"
    assert model.save_pretrained(out, repo_id=NAME) is None
    there = pushed.repos[NAME].files()
    assert files_of(out) == {name: there[name] for name in there if name != ".gitattributes"}
    assert Model.from_pretrained(out).posterior_sha256 == model.posterior_sha256
    with pytest.warns(NoteWarning, match="is kept, and may describe another model"):
        model.save_pretrained(out)
    with pytest.raises(InputError, match=r"holds posterior\.json, which the model does not have"):
        segunc.load(finetuned.base).save_pretrained(out)
    (out / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds config\.json, which the model does not have"):
        model.save_pretrained(out)
    assert (out / "config.json").exists()
    address = model.save_pretrained(tmp_path / "again", push_to_hub=True, private=True)
    assert address is not None
    assert pushed.repos["owner/again"].private


def test_a_model_in_memory_is_pushed(hub: Hub, finetuned: Job) -> None:
    base = segunc.load(finetuned.base)
    fitted = segunc.ABNN(members=1, alpha=0.2, epochs=0).fit(base)
    fitted.push_to_hub(NAME)
    loaded = Model.from_pretrained(NAME)
    assert loaded.posterior.settings() == fitted.posterior.settings()


def test_a_model_that_cannot_be_saved_makes_no_repository(
    hub: Hub, finetuned: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_to_save(*_: object) -> None:
        raise InputError("it cannot be saved")

    monkeypatch.setattr(Model, "save", refuse_to_save)
    with pytest.raises(InputError, match="it cannot be saved"):
        segunc.load(finetuned.base).push_to_hub(NAME)
    assert hub.repos == {}


def test_a_configuration_beside_a_model_is_not_published(
    hub: Hub, finetuned: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Model.save

    def save_with_configuration(model: Model, folder: Path) -> None:
        save(model, folder)
        (folder / "finetune.yaml").write_text(f"data: {{root: {finetuned.data}}}")

    monkeypatch.setattr(Model, "save", save_with_configuration)
    segunc.load(finetuned.base).push_to_hub(NAME)
    assert "finetune.yaml" not in hub.repos[NAME].files()


def test_a_module_without_a_factory_travels(hub: Hub) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
    base = segunc.wrap(net.eval(), ["a", "b", "c", "d"])
    model = segunc.ABNN(members=2, alpha=0.1, epochs=0).fit(base)
    model.push_to_hub(NAME)
    files = hub.repos[NAME].files()
    assert "network.safetensors" not in files
    assert "network=net" in files["README.md"].decode()
    loaded = Model.from_pretrained(NAME, network=net)
    image = np.zeros((64, 128, 3), np.uint8)
    assert np.array_equal(loaded(image, draws=2).entropy, model(image, draws=2).entropy)
    with pytest.raises(InputError, match="holds no network"):
        Model.from_pretrained(NAME)
    with pytest.raises(InputError, match="the module given as network"):
        Model.from_pretrained(NAME, network=nn.Conv2d(3, 4, 1))


def test_without_the_extra_the_sentence_says_what_to_install(
    finetuned: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    model = Model.from_pretrained(finetuned.abnn)  # a folder needs nothing
    for call in (
        lambda: Model.from_pretrained(NAME),
        lambda: model.push_to_hub(NAME),
        lambda: model.save_pretrained(tmp_path / "out"),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == (
            "models on the Hugging Face Hub need the package huggingface_hub, which is not "
            'installed. Hint: pip install "segunc[hub]"'
        )


def test_importing_a_model_does_not_import_the_client_of_the_hub() -> None:
    code = (
        "import sys, segunc; before = 'huggingface_hub' in sys.modules; segunc.Model;"
        "import segunc.posteriors.hub_download, segunc.posteriors.hub_upload;"
        "sys.exit('huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_verbs_take_the_folder_of_a_loaded_model(
    pushed: Hub, finetuned: Job, tmp_path: Path
) -> None:
    out = tmp_path / "metrics.json"
    words = ("evaluate --device cpu --split test --draws 2 --out", out)
    model = ("--model", Model.from_pretrained(NAME).folder)
    assert "--model needs a data set. Hint: --dataset" in refuse(*words, *model)
    succeed(*words, *model, "--dataset", "toy", "--root", finetuned.data)
    segunc.load(finetuned.base).push_to_hub("owner/base")
    base = ("--base", Model.from_pretrained("owner/base").folder)
    words = ("finetune --device cpu --abnn.statistics reestimated --out", tmp_path / "abnn")
    assert "data: root is missing" in refuse(*words, *base)
    succeed(*words, *base, "--data.root", finetuned.data)
    assert json.loads((tmp_path / "abnn/data.json").read_text())["dataset"] == "toy"


def test_examples_of_the_methods_run(pushed: Hub, finetuned: Job) -> None:
    names = {"segunc": segunc, "abnn": finetuned.abnn}
    runner = doctest.DocTestRunner(verbose=False)
    for method in (Model.from_pretrained, Model.push_to_hub):
        (example,) = doctest.DocTestFinder().find(method, method.__name__, globs=names)
        assert example.examples
        assert runner.run(example).failed == 0


@pytest.mark.parametrize("source", [None, 0])
def test_what_is_no_name_is_refused(source: Any) -> None:
    with pytest.raises(InputError, match="is neither a folder nor a name on the Hub"):
        Model.from_pretrained(source)
