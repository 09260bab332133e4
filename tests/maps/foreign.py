"""Score maps as other tools write them."""

from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np


def write_map(path: Path, values: np.ndarray, **datasets: Any) -> Path:
    """One map, by the ending of its name; further HDF5 data sets by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() in (".hdf5", ".h5"):
        with h5py.File(path, "w") as file:
            for name, content in (datasets or {"value": values}).items():
                file.create_dataset(name, data=content, compression=9)
    elif path.suffix.lower() == ".npy":
        np.save(path, values)
    else:
        assert cv2.imwrite(str(path), values)
    return path
