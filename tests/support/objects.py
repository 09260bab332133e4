"""A frame with labelled objects."""

import numpy as np
from scipy import ndimage


def object_scene(
    seed: int, kind: str = "float", size: tuple[int, int] = (40, 60)
) -> tuple[np.ndarray, np.ndarray]:
    """Return a score map and an anomaly label with objects of many sizes.

    Some objects touch only at corners, and some pixels are ignored.

    Args:
        seed: of the scene.
        kind: ``float`` for float16 scores, anything else for uint16 codes.
        size: height and width.
    """
    random = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(random.random(size), 1.3)
    anomaly = (smooth > np.quantile(smooth, 0.8)).astype(np.uint8)
    anomaly[random.random(size) < 0.03] = 255
    scores = np.round(random.normal(size=size) + 1.2 * (anomaly == 1), 1)
    if kind == "float":
        return scores.astype(np.float16), anomaly
    return np.uint16(np.clip(scores * 500 + 2000, 0, 4000)), anomaly
