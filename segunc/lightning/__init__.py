"""What trains in Lightning: a callback that fits a method of this package in a user's own training,
and logs its numbers and maps.
"""

from segunc.lightning.callback import Evaluation as Evaluation
from segunc.lightning.callback import UncertaintyCallback as UncertaintyCallback

__all__ = ["Evaluation", "UncertaintyCallback"]
