"""A data set of somebody else's: frames and class labels side by side in one folder."""

from segunc.data.datasets import DATASETS
from segunc.data.entries import DatasetEntry
from segunc.data.layouts import Layout, same_folders

DATASETS.register(
    "side-by-side",
    DatasetEntry(
        name="side-by-side",
        source="https://example.org/side-by-side",
        layouts=(
            Layout(
                same_folders("{}", "{}", ("train", "val", "test")),
                image_ending="_rgb",
                label_ending="_gt",
            ),
        ),
        labels="toy",
    ),
)
