"""A run removes only files that its own record lists, by name and by hash; no module goes round
that rule."""

import ast
import hashlib
from pathlib import Path

import pytest

import segunc
from segunc.core.errors import InputError
from segunc.core.files import is_whole_record, write_record
from segunc.core.removal import (
    Ledger,
    check_files,
    files_below as below,
    is_listed,
    remove_cached,
    remove_checked,
    remove_result,
    replace_cached,
)

PACKAGE = Path(segunc.__file__).parent
MAY_REMOVE = {"core/files.py", "core/removal.py"}
REMOVING = {"unlink", "rmdir", "rmtree", "removedirs", "rename", "renames", "truncate", "move"}
WRITING = {"write_text", "write_bytes"}


def removing_calls(source: str) -> list[str]:
    """What removes, moves or writes over a file: by the names of methods, and ``os.remove`` and
    ``path.replace(target)``."""
    calls = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        owner = ast.unparse(node.func.value)
        one_argument = len(node.args) == 1 and not node.keywords
        if name in REMOVING | WRITING or (owner == "os" and name in ("remove", "replace")):
            calls.append(f"{owner}.{name}")
        elif name == "replace" and one_argument and owner != "dataclasses":
            calls.append(f"{owner}.replace")
    return calls


def test_only_the_rooms_of_the_rule_remove_files() -> None:
    offenders = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in MAY_REMOVE and (calls := removing_calls(path.read_text("utf-8"))):
            offenders[name] = calls
    assert offenders == {}


@pytest.mark.parametrize(
    "line", ["p.unlink()", "shutil.rmtree(p)", "os.remove(p)", "p.replace(q)", "p.write_text('')"]
)
def test_the_search_for_removals_sees_them(line: str) -> None:
    assert len(removing_calls(line)) == 1


def sums(data: bytes) -> list[tuple[int, str]]:
    return [(len(data), hashlib.sha256(data).hexdigest())]


def test_a_listed_file_with_its_bytes_is_removed_and_its_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"ours")
    check_files(tmp_path, below(tmp_path), {"a/x": sums(b"ours")})
    remove_checked(tmp_path, ["a/x"])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("data", [b"mine", b"longer"], ids=["same size", "other size"])
def test_a_file_with_other_bytes_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputError, match="holds x, which has changed since the run wrote it"):
        check_files(tmp_path, ["x"], {"x": sums(b"ours")})


def test_a_file_that_no_record_lists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ours")
    with pytest.raises(InputError, match="holds x, which is no file of the run"):
        check_files(tmp_path, ["x"], {"y": sums(b"ours")})


def test_a_link_is_not_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ours")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert is_listed(tmp_path / "x", sums(b"ours"))
    assert not is_listed(tmp_path / "link", sums(b"ours"))


def test_a_forged_sum_without_digits_lists_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    assert not is_listed(tmp_path / "x", [(4, "")])


def test_a_ledger_lists_a_file_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segunc.core.removal.write_file", stop)
    with pytest.raises(KeyboardInterrupt):
        Ledger(tmp_path).write("a", b"1")
    assert Ledger(tmp_path).listed == {"a": set(sums(b"1"))}


def test_a_ledger_with_a_torn_last_line_goes_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("a", b"1")
    with ledger.path.open("ab") as file:
        file.write(b'{"file": "b", "si')
    Ledger(tmp_path).write("c", b"2")
    assert Ledger(tmp_path).listed == {"a": set(sums(b"1")), "c": set(sums(b"2"))}


def test_a_ledger_clears_what_it_lists_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("part/a", b"1")
    (tmp_path / "part/mine").write_bytes(b"2")
    with pytest.raises(InputError, match="part/mine"):
        ledger.clear(["part"])
    assert (tmp_path / "part/a").read_bytes() == b"1"
    (tmp_path / "part/mine").rename(tmp_path / "mine")
    Ledger(tmp_path).clear(["part"])
    assert not (tmp_path / "part").exists()
    assert (tmp_path / "mine").read_bytes() == b"2"


def test_a_ledger_writes_over_nobodys_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(InputError, match="holds a, which is no file of the run"):
        Ledger(tmp_path).write("a", b"1")
    assert (tmp_path / "a").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["../x", "/x"])
def test_a_ledger_of_a_stranger_names_nothing_outside(tmp_path: Path, name: str) -> None:
    line = f'{{"file": "{name}", "size": 4, "sha256": "{"0" * 64}"}}\n'
    (tmp_path / ".segunc-files.jsonl").write_text(line)
    with pytest.raises(InputError, match="is named"):
        Ledger(tmp_path).clear(["part"])


def test_a_record_is_removed_only_where_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, {"base_sha256": "0"})
    path.write_text(path.read_text().replace('"0"', '"1"'))
    with pytest.raises(InputError, match="is not the record"):
        remove_result(path, is_whole_record, "the record")
    assert path.exists()
    write_record(path, {"base_sha256": "0"})
    remove_result(path, is_whole_record, "the record")
    assert not path.exists()


def test_a_cache_removes_and_replaces_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "downloads"
    folder.mkdir(parents=True)
    (folder / "new").write_bytes(b"new")
    (folder / "old").write_bytes(b"old")
    replace_cached(folder / "new", folder / "old")
    assert (folder / "old").read_bytes() == b"new"
    remove_cached(folder)
    assert not folder.exists()


def test_a_cache_removes_nothing_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").write_bytes(b"mine")
    with pytest.raises(InputError, match="is not in the cache"):
        remove_cached(tmp_path / "mine")
    assert (tmp_path / "mine").read_bytes() == b"mine"
