"""The replicates beside a result: kept whole, loaded without unpickling, other files refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.evaluation.resampling import Replicates, load_replicates, save_replicates, sidecar_path


def test_the_sidecar_keeps_everything(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((2, 50))
    values[1, 3] = np.nan
    path = sidecar_path(tmp_path / "my.run.json")
    assert path.name == "my.run.replicates.npz"
    save_replicates(path, Replicates(("a.b", "a.c"), values, 7, ("straße/1", "f2")))
    found = load_replicates(path)
    assert (found.paths, found.seed, found.units) == (("a.b", "a.c"), 7, ("straße/1", "f2"))
    np.testing.assert_array_equal(found.values, values)
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays) == {"paths", "values", "seed", "clusters"}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "arrays_",
    [
        {},
        {"paths": np.array(["a"]), "values": np.zeros((2, 9)), "seed": 1, "clusters": np.array(["f"])},
        {"paths": np.array([1]), "values": np.zeros((1, 9)), "seed": 1, "clusters": np.array(["f"])},
        {"paths": np.array(["a"]), "values": np.zeros((1, 9)), "seed": 0.5, "clusters": np.array(["f"])},
        {"paths": np.array(["a"], object), "values": np.zeros((1, 9)), "seed": 1, "clusters": np.array(["f"])},
    ],
)
def test_another_file_is_no_sidecar(tmp_path: Path, arrays_: dict[str, np.ndarray]) -> None:
    path = tmp_path / "x.replicates.npz"
    np.savez(path, **arrays_)
    with pytest.raises(InputError, match=r"x\.replicates\.npz"):
        load_replicates(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"x\.replicates\.npz holds no replicates"):
        load_replicates(path)
