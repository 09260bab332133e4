"""What of a study a repository can hold: its records, its results, and the replicates of the
numbers that its tables show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from segunc.core.files import read_json, without_seal, write_atomically, write_json, write_result
from segunc.evaluation.resampling import (
    encoded_replicates,
    record_replicates,
    replicates_beside,
    sidecar_path,
)
from tools.study.cells import RECORD, Study
from tools.study.endpoints import endpoint_paths
from tools.study.plan import Table
from tools.study.tables import DRAWN, Chosen
from tools.study.words import without_folders


def keep(study: Study, folder: Path) -> int:
    """Copy that of all finished cells, from which ``--stage report --out`` of the folder writes the
    same tables; their count. Trained networks may be gone by then, and other seeds be made
    elsewhere: where the plan uses a variable of the environment, so do the copies.
    """
    count, asked = 0, json.dumps(asdict(study.plan))
    for cell in study.cells():
        if not cell.record() or cell.record()["failure"] is not None:
            continue
        kept = folder / cell.folder.relative_to(study.out)
        kept.mkdir(parents=True, exist_ok=True)
        _copy(cell.folder / RECORD, kept / RECORD, asked)
        for name in study.plan.evaluations_of(cell.row, cell.protocol):
            if study.lacks(cell, name) is None:
                place, result = f"{cell.protocol}/{name}", cell.result(name)
                whole = replicates_beside(result, read_json(result, "JSON of a study"))
                encoded = None
                if whole is not None:
                    paths = {
                        path
                        for table in study.plan.tables
                        if table.evaluation == place
                        for path in _shown(table)
                    }
                    ends = [end for end in study.plan.endpoints if end.evaluation == place]
                    paths |= {
                        ".".join(path) for end in ends for path in endpoint_paths(study.plan, end)
                    }
                    paths |= {
                        path.replace(f".{drawn}.", f".{one}.")
                        for one, drawn in DRAWN.items()
                        for path in paths
                        if path.startswith("selective.")
                    }
                    rows = [row for row, path in enumerate(whole.paths) if path in paths]
                    few = replace(
                        whole,
                        paths=tuple(whole.paths[row] for row in rows),
                        values=whole.values[rows],
                    )
                    encoded = encoded_replicates(few)
                _copy(result, kept / result.name, asked, encoded)
                if encoded is not None:
                    write_atomically(sidecar_path(kept / result.name), encoded)
        count += 1
    return count


def _copy(source: Path, target: Path, asked: str, replicates: bytes | None = None) -> None:
    """Copy a file of JSON with the names of folders in place of the folders.

    A result holds the hash of its content, which is another one then, and that of the replicates
    beside it, which are those of the copy.
    """
    content = read_json(source, "JSON of a study")
    plain = without_seal(content, source)
    copied = json.loads(without_folders(json.dumps(plain, ensure_ascii=False), asked))
    if replicates is not None:
        record_replicates(copied, replicates)
    if plain == content:
        write_json(target, copied)
    else:
        write_result(target, copied)


def _shown(table: Table) -> Iterator[str]:
    scores = {
        table.score,
        table.baseline_score,
        *table.scores,
        *(score for _, score in table.parts),
    }
    for score in scores if scores != {None} else (None,):
        yield from (".".join(Chosen(table.numbers, score).path(number)) for number in table.numbers)
