"""The cells of a study: a row, a seed and a protocol, each made and evaluated once by the package's
own verbs.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.device import resolve_device
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import read_json, write_atomically, write_json
from segunc.core.version import tool_commit
from segunc.networks.model_folder import DESCRIPTION, WEIGHTS
from segunc.options import FinetuneOptions
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import model_files
from segunc.training.config import dump_config
from segunc.training.lightning_runs import CHECKPOINTS, LAST
from segunc.verbs.evaluate import evaluate
from segunc.verbs.training import finetune
from tools.measuring import provenance
from tools.study.plan import SELECTION, Plan, Row
from tools.study.words import (
    answers,
    check_settings,
    evaluate_options,
    evaluation_words,
    expand,
    fingerprint,
)

RECORD = "cell.json"
CONFIG = "config.yaml"


@dataclass(frozen=True)
class Cell:
    """One model of a study.

    Attributes:
        protocol: name of the protocol.
        row: what it is.
        seed: of the row.
        folder: holds its record, its results and, where a method made it, its model.
        bases: model folders that it is made of; the model itself where there is no method.
    """

    protocol: str
    row: Row
    seed: int
    folder: Path
    bases: tuple[Path, ...]

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.bases[0] if self.row.method is None else self.folder / "model"

    @property
    def name(self) -> str:
        return f"{self.protocol}, {self.row.label}, seed {self.seed}"

    def result(self, evaluation: str) -> Path:
        """The JSON file of an evaluation."""
        return self.folder / f"{evaluation}.json"

    def record(self) -> dict[str, Any]:
        """What is known of the cell; empty before it was begun."""
        path = self.folder / RECORD
        return read_json(path, "the record of a study's cell") if path.exists() else {}

    def finished(self, evaluation: str) -> bool:
        """Whether the result of an evaluation is there."""
        return (
            evaluation in self.record().get("evaluations", {}) and self.result(evaluation).exists()
        )


class Study:
    """Makes what a plan asks for and is not there yet. A killed study continues with the same call.

    Args:
        plan: what is asked for.
        rows: the plan's rows, or its candidates.
        out: folder of the cells, ``PROTOCOL/ROW/seed-N``.
        device: as ``--device`` of the verbs.

    Raises:
        InputError: settings of a row are not those of its method.
    """

    def __init__(self, plan: Plan, rows: Sequence[Row], out: Path, device: str = "auto") -> None:
        self.plan, self.rows, self.out, self.device = plan, list(rows), out, device
        self._by_label = {row.label: row for row in rows}
        for cell in self.cells():
            # The seeds of a row differ by numbers that cannot be wrong.
            first = cell.seed == plan.seeds_of(cell.row)[0]
            if first and cell.row.method is not None and (config := self._config(cell)):
                check_settings(cell.row.method, config, cell.name)
        for protocol in plan.protocols.values():
            for options in [
                *protocol.evaluations.values(),
                *([protocol.selection] if protocol.selection else []),
            ]:
                evaluate_options(
                    out, out / "refused.json", {**plan.evaluate, **options}, device
                )  # refuses what is wrong

    def cells(
        self, labels: Sequence[str] | None = None, seeds: Sequence[int] | None = None
    ) -> Iterator[Cell]:
        """The cells of these rows and seeds (None: all) in the order in which they can be made.

        Raises:
            InputError: an unknown label.
        """
        for label in labels or ():
            if label not in self._by_label:
                raise InputError(
                    f"the plan has no row '{label}'",
                    hint=f"choose from {', '.join(self._by_label)}",
                )
        for row in self.rows:
            if labels is not None and row.label not in labels:
                continue
            for seed in self.plan.seeds_of(row):
                if seeds is None or seed in seeds:
                    yield from (
                        self.cell(protocol, row, seed) for protocol in self.plan.protocols_of(row)
                    )

    def cell(self, protocol: str, row: Row, seed: int) -> Cell:
        """The cell of a row and a seed in a protocol."""
        of = self.plan.members_of(row, seed)
        if row.of is not None:
            bases = [self.cell(protocol, self._by_label[row.of], one).model for one in of]
        else:
            template = expand(row.base or self.plan.protocols[protocol].base)
            bases = [Path(template.replace("{seed}", str(one))) for one in of]
        return Cell(
            protocol, row, seed, self.out / protocol / row.slug / f"seed-{seed}", tuple(bases)
        )

    def run(self, cell: Cell, evaluations: Mapping[str, Mapping[str, Any]]) -> str:
        """Make a cell's model and the results that lack.

        Args:
            cell: one of this study.
            evaluations: name -> options of ``segunc evaluate``.

        Returns:
            ``made``, ``kept`` where all was there, or why it could not be made; a failure is
            recorded, and tried again by the next call.

        Raises:
            InputError: the cell was made from other settings or bases.
        """
        if cell.row.of is not None:
            self._make_bases_again(cell)
        lacking = [str(base) for base in cell.bases if not model_files(base)]
        if lacking:
            return f"waits for {', '.join(lacking)}"
        record, asked = cell.record(), self._asked(cell)
        kept = self._asked(cell, expanded=False)
        if record and record["asked"] not in (asked, kept):
            if record["failure"] is None:
                raise InputError(
                    f"{cell.folder} was made from other settings or bases than the plan's",
                    hint=f"remove {cell.folder}",
                )
            shutil.rmtree(
                cell.folder / "model", ignore_errors=True
            )  # half of what is no longer asked for
        made = False
        try:
            if record.get("failure", "not begun") is not None:
                cell.folder.mkdir(parents=True, exist_ok=True)
                record = {"asked": asked, "failure": "not finished", "evaluations": {}}
                write_json(cell.folder / RECORD, record)
                record |= self._make(cell)
                write_json(cell.folder / RECORD, record)
                made = True
            for name, options in evaluations.items():
                wanted = self._wanted(cell, options)
                words = evaluation_words(wanted)
                kept_words = evaluation_words(wanted, expanded=False)
                recorded_words = record["evaluations"].get(name, {}).get("asked")
                if cell.finished(name) and recorded_words in (words, kept_words):
                    continue
                self._make_again(cell)
                start = time.perf_counter()
                result = evaluate(
                    evaluate_options(cell.model, cell.result(name), wanted, self.device)
                )
                seconds, frames = time.perf_counter() - start, result.numbers["counts"]["frames"]
                if result.failure:
                    raise PartialFailure(result.failure)
                about = {
                    "asked": words,
                    "seconds": round(seconds, 1),
                    "frames": frames,
                    "commit": tool_commit(),
                }
                record["evaluations"][name] = about
                write_json(cell.folder / RECORD, record)
                made = True
        except (InputError, PartialFailure) as error:
            failure = " ".join(str(error).split())
            if record.get("failure") is not None:
                write_json(cell.folder / RECORD, {**record, "failure": failure})
            return f"failed: {failure}"
        return "made" if made else "kept"

    def _make_again(self, cell: Cell) -> None:
        """Make the model of a finished cell again if its record came without it, as it does from
        ``--keep``.
        """
        if cell.row.method is not None and not model_files(cell.model):
            self._make(cell)

    def _make_bases_again(self, cell: Cell) -> None:
        """Make the models of the finished cells that this cell is built on again if they lack."""
        assert cell.row.of is not None
        base_row = self._by_label[cell.row.of]
        for seed in self.plan.members_of(cell.row, cell.seed):
            base_cell = self.cell(cell.protocol, base_row, seed)
            record = base_cell.record()
            if record and record["failure"] is None:
                self._make_again(base_cell)

    def lacks(self, cell: Cell, evaluation: str) -> str | None:
        """Why a result of a cell cannot stand in a table of this plan, in a line; None where it
        can.

        Base networks may be gone: :meth:`run` alone asks whether they are the same.
        """
        record = cell.record()
        if not record or record["failure"] is not None:
            return str(record.get("failure", "not begun"))
        if not answers(record["asked"]["config"], self._config(cell, expanded=False)):
            return f"made from other settings than the plan's; remove {cell.folder}"
        if not cell.finished(evaluation):
            return f"not evaluated on {evaluation}"
        protocol = self.plan.protocols[cell.protocol]
        options = {**protocol.evaluations, SELECTION: protocol.selection}[evaluation]
        words = evaluation_words(self._wanted(cell, options), expanded=False)
        if not answers(record["evaluations"][evaluation]["asked"], words):
            return f"evaluated on {evaluation} with other options than the plan's"
        return None

    def _wanted(self, cell: Cell, options: Mapping[str, Any]) -> dict[str, Any]:
        scores = {} if cell.row.scores is None else {"scores": cell.row.scores}
        return {**self.plan.evaluate, **options, **cell.row.evaluate, **scores}

    def _make(self, cell: Cell) -> dict[str, Any]:
        """Run the method; what it cost."""
        seconds, continued = 0.0, False
        method = cell.row.method
        if method is not None:
            config = self._config(cell)
            path = cell.folder / CONFIG if config else None
            if path is not None:
                write_atomically(path, dump_config(config).encode())
            continued = (cell.model / CHECKPOINTS / LAST).exists()
            start = time.perf_counter()
            finetune(
                FinetuneOptions(
                    base=cell.bases, out=cell.model, config=path, method=method, device=self.device
                )
            )
            seconds = time.perf_counter() - start
            # Finished cells are never continued, and a checkpoint is as large as the network.
            shutil.rmtree(cell.model / CHECKPOINTS, ignore_errors=True)
        networks, before = self._before(cell)
        sizes = {path: path.stat().st_size for path in model_files(cell.model)}
        return {
            "failure": None,
            "method_seconds": round(before + seconds, 1),
            "networks": networks,
            "continued": continued,
            "bytes": sum(sizes.values()),
            "posterior_bytes": sum(
                n for path, n in sizes.items() if path.name not in (WEIGHTS, DESCRIPTION)
            ),
            "made": provenance(resolve_device(self.device)),
        }

    def _before(self, cell: Cell) -> tuple[dict[str, float | None], float]:
        """SHA-256 -> seconds of the trainings of all base networks, and the seconds of methods
        before this one.
        """
        networks: dict[str, float | None] = {}
        seconds = 0.0
        for base in cell.bases:
            record_path = base.parent / RECORD
            if cell.row.of is not None and record_path.exists():
                held = read_json(record_path, "the record of a study's cell")
                networks |= held["networks"]
                seconds += held["method_seconds"]
            else:
                description = read_json(base / DESCRIPTION, "the description of a network")
                networks[description["sha256"]] = description.get("provenance", {}).get("seconds")
        return networks, seconds

    def _asked(self, cell: Cell, *, expanded: bool = True) -> dict[str, Any]:
        """Return what a cell is made from: with folders, or as ``--keep`` writes it, with the names
        of variables of the environment.
        """
        return {
            "method": cell.row.method,
            "config": self._config(cell, expanded=expanded),
            "bases": [fingerprint(base) for base in cell.bases],
        }

    def _config(self, cell: Cell, *, expanded: bool = True) -> dict[str, Any]:
        """The configuration of the cell's method; empty where it takes none. With variables of the
        environment, or their names.
        """
        known = expand if expanded else str
        method = cell.row.method
        if method is None or METHODS[method].several:
            return {}
        settings = METHODS[method].config
        fields = settings.__dataclass_fields__
        seed = {"seed": cell.seed} if "seed" in fields else {}
        config: dict[str, Any] = {settings.section: seed}
        config[settings.section] |= {
            k: known(v) if isinstance(v, str) else v for k, v in cell.row.settings.items()
        }
        if METHODS[method].data:
            data = {**self.plan.protocols[cell.protocol].data, "seed": cell.seed, **cell.row.data}
            config = {"data": {**data, "root": known(str(data.get("root", "")))}, **config}
        further = {"select": cell.row.select, "trainer": cell.row.trainer}
        return config | {name: given for name, given in further.items() if given}
