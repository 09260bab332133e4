"""The class by which :mod:`segunc.posteriors.hub_upload` writes to the Hugging Face Hub.

It is a module of its own because its base class comes from ``huggingface_hub``, which an extra
installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData, ModelHubMixin

from segunc.core.files import link_or_copy, unlinked
from segunc.posteriors.model_card import TASK, Card, Result, read_template

TAGS = ("semantic-segmentation", "uncertainty-estimation", "out-of-distribution-detection")


class HubModel(
    ModelHubMixin,
    library_name="segunc",
    pipeline_tag=TASK,
    tags=list(TAGS),
    model_card_template=read_template(),
):
    """A model folder that is ready to be published, with its card.

    The fields are attributes and no arguments, because the mixin stores arguments in
    ``config.json``.
    """

    folder: Path
    names: Sequence[str]
    card: Card
    repo_id: str

    @classmethod
    def of(cls, folder: Path, names: Sequence[str], card: Card, repo_id: str) -> HubModel:
        """Return the model in a folder with its card.

        Args:
            folder: of the model.
            names: of its files that are published.
            card: of the model.
            repo_id: the name that the card tells its readers to load.
        """
        published = cls()
        published.folder = folder
        published.names = names
        published.card = card
        published.repo_id = repo_id
        return published

    def _save_pretrained(self, save_directory: Path) -> None:
        """Link (or copy) the files of the model."""
        for name in self.names:
            target = unlinked(save_directory, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(self.folder / name, target)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the card: the header of the mixin, that of the card, and its text."""
        info = self._hub_mixin_info
        shared: dict[str, Any] = info.model_card_data.to_dict()  # type: ignore[no-untyped-call]
        header = {**shared, **self.card.header}
        header["tags"] = sorted({*header["tags"], *self.card.tags})
        results = [_eval_result(result) for result in self.card.results]
        if results:
            header.setdefault("model_name", self.repo_id.rpartition("/")[2])
            header["eval_results"] = results
            header["metrics"] = sorted({result.metric for result in self.card.results})
        card: ModelCard = ModelCard.from_template(
            card_data=ModelCardData(**header),
            template_str=info.model_card_template,
            repo_id=self.repo_id,
            **self.card.values,
        )
        return card


def _eval_result(result: Result) -> EvalResult:
    """Return a number as the Hub has it; results of one split are told apart by their names."""
    return EvalResult(
        task_type=TASK,
        dataset_type=result.dataset,
        dataset_name=result.frames,
        dataset_config=result.run,
        dataset_split=result.split,
        metric_type=result.metric,
        metric_name=result.title,
        metric_value=result.value,
    )
