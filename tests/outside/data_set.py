"""A data set of another package: frames and class labels side by side in one folder."""

from segunc.data.entries import DatasetEntry
from segunc.data.layouts import Layout, same_folders

# train/a_rgb.png is an image, and train/a_gt.png its label.
LAYOUT = Layout(
    same_folders("{}", "{}", ("train", "val", "test")),
    image_ending="_rgb",
    label_ending="_gt",
)

SIDE_BY_SIDE = DatasetEntry(
    name="side-by-side",
    source="https://example.org/side-by-side",
    layouts=(LAYOUT,),
    labels="toy",
)
