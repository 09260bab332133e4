"""What trains in Lightning: a callback that fits a method of this package in a user's own training,
and logs its numbers and maps.
"""

from segunc.lightning.callback import (
    Evaluation as Evaluation,
    UncertaintyCallback as UncertaintyCallback,
)

__all__ = ["Evaluation", "UncertaintyCallback"]
