"""A table that lies in one or several Parquet files, read by whole light columns or by single rows.

A page that opens one rollout of 200,000 must not read the tokens of the others: columns are read whole only
where they are light, and heavy ones from the row group of the wanted row, no further than to that row.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.artifacts import ledger
from pipeline.artifacts.disk import inside
from pipeline.artifacts.manifest import check_sizes, read_manifest, read_plan
from pipeline.errors import ArtifactError
from pipeline.ids import digest


class Parts:
    """The files of a table, in order; a row's number counts through all of them.

    A file that was made again since, by `--fresh` for instance, is refused: it has other rows.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.stamps = tuple(map(_stamp, self.paths))

    @cached_property
    def _metadata(self) -> list[Any]:
        found = []
        for path in self.paths:
            with _readable(path):
                found.append(pq.read_metadata(path))
        return found

    @cached_property
    def _groups(self) -> list[tuple[int, int]]:
        """(place of the file, number of the row group) of every row group."""
        return [(f, g) for f, meta in enumerate(self._metadata) for g in range(meta.num_row_groups)]

    @cached_property
    def _starts(self) -> np.ndarray:
        """The first row of every row group, and the number of all rows."""
        sizes = (self._metadata[f].row_group(g).num_rows for f, g in self._groups)
        return np.array(list(accumulate(sizes, initial=0)))

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return int(self._starts[-1])

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns before compression."""
        return sum(self._metadata[f].row_group(g).total_byte_size for f, g in self._groups)

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Returns whole columns; raises ArtifactError for a file that is gone or damaged."""
        tables = []
        for place, path in enumerate(self.paths):
            with _readable(path), self._open(place) as file:
                tables.append(file.read(columns=list(names)))
        return pa.concat_tables(tables)

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields the columns piece by piece, each with the number of its first row."""
        first = 0
        for place, path in enumerate(self.paths):
            with _readable(path), self._open(place) as file:
                for batch in file.iter_batches(4096, columns=list(names)):
                    yield first, batch
                    first += batch.num_rows

    def rows(self, numbers: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
        """Returns some columns of some rows, in the order of their numbers; IndexError for no such row."""
        wanted = np.unique(np.asarray(numbers, np.int64))
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < self.num_rows:
            raise IndexError(f"rows {numbers}; there are {self.num_rows}")
        found: dict[int, dict[str, Any]] = {}
        groups = np.searchsorted(self._starts, wanted, side="right") - 1
        for group in np.unique(groups):
            found |= self._rows_of_group(int(group), wanted[groups == group], names)
        return [found[int(number)] for number in numbers]

    def _rows_of_group(
        self, group: int, wanted: np.ndarray, names: Sequence[str]
    ) -> dict[int, dict[str, Any]]:
        place, number = self._groups[group]
        first, found = int(self._starts[group]), dict[int, dict[str, Any]]()
        with _readable(self.paths[place]), self._open(place) as file:
            # Rows before the wanted ones are decoded too, in pieces neither many nor far too large.
            size = min(max(self._metadata[place].row_group(number).num_rows // 32, 256), 8192)
            for batch in file.iter_batches(size, row_groups=[number], columns=list(names)):
                here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
                rows = batch.take(pa.array(here - first)).to_pylist()
                found |= dict(zip(here.tolist(), rows, strict=True))
                first += batch.num_rows
                if wanted[-1] < first:
                    break
        return found

    def _open(self, place: int) -> pq.ParquetFile:
        # A file of its own for each reader: requests are answered by several threads.
        path, meta = self.paths[place], self._metadata[place]
        if _stamp(path) != self.stamps[place]:
            raise ArtifactError(f"{path} was made again. Next: load the page again")
        return pq.ParquetFile(path, metadata=meta, page_checksum_verification=True)


def _stamp(path: Path) -> tuple[int, ...]:
    """Returns what another file of the same name would not share."""
    with _readable(path):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ArtifactError(f"{path} is gone: its stage went on. Next: load the page again") from None
    except (pa.ArrowException, OSError) as error:
        words = " ".join(str(error).split())[:200]
        raise ArtifactError(f"{path}: not a readable Parquet file ({words}). Next: vdapo verify") from None


def tables_of(folder: Path) -> tuple[dict[str, Parts], bool]:
    """Returns a stage's tables by name, and whether it is complete; of one half done, its committed shards.

    Sizes are checked and pages as they are read; digests are not: reading all of a large run would take
    longer than looking at it (`vdapo verify` does). Raises ArtifactError for a damaged stage.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        check_sizes(folder, manifest)
        return {name: Parts([inside(folder, f"{name}.parquet")]) for name in manifest["tables"]}, True
    if read_plan(folder) is None:
        return {}, False
    files: dict[str, list[Path]] = {}
    for entry in ledger.read(folder)[0].values():
        for name, facts in entry.files.items():
            files.setdefault(name, []).append(inside(folder, facts["path"]))
    return {name: Parts(paths) for name, paths in files.items()}, False


def version_of(tables: Mapping[str, Parts]) -> str:
    """Returns what changes when a stage goes on or is made again: its rows are then numbered anew."""
    return digest(*([name, *map(list, parts.stamps)] for name, parts in tables.items()))[:12]
