"""Rows of a data set: by name from the Hugging Face hub, or from a local file or folder."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}

Wanted = Collection[Sequence[str]]
"""Where each field may be: columns, the best first; `a.b` is a column within the column `a`."""


def tops_of(wanted: Wanted) -> set[str]:
    """Returns the names of columns that hold what is wanted, if a table has them."""
    return {top for columns in wanted for column in columns for top in (column, column.partition(".")[0])}


def columns_to_read(names: Collection[str], wanted: Wanted, has_values: Callable[[str], bool]) -> list[str]:
    """Returns the columns of a table that hold what is wanted, each field's up to one that has values."""
    kept = dict[str, None]()
    for columns in wanted:
        for column in columns:
            kept |= dict.fromkeys(top for top in (column, column.partition(".")[0]) if top in names)
            if column in names and has_values(column):
                break
    return list(kept)


def load_rows(
    source: str,
    split: str = "train",
    config: str | None = None,
    revision: str | None = None,
    *,
    wanted: Wanted,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the rows of one split, in order and with the wanted columns alone, and all columns' names.

    Raises ConfigError for what cannot be read.

    `source` is a file (.parquet, .jsonl, .json, .csv; its only split), a folder that `datasets` saved or that
    is laid out as on the hub, or a name on the hub, with a configuration and a revision (by default the
    newest), which needs the network unless it is cached.
    """
    path = Path(source)
    try:
        import datasets

        if path.is_file():  # streamed, so that nothing is copied into a cache
            kind = KINDS[path.suffix.lower()]
            rows = datasets.load_dataset(kind, data_files=source, split="train", streaming=True)
        elif (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            saved = datasets.load_from_disk(source)
            rows = saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            rows = datasets.load_dataset(
                source, config, split=split, revision=revision, streaming=path.is_dir()
            )
        names = dict.fromkeys(rows.column_names or ())  # of a streamed CSV only its rows know them

        def has_values(column: str) -> bool:
            return isinstance(rows, datasets.Dataset) and rows.data.column(column).null_count < len(rows)

        if names:
            rows = rows.select_columns(columns_to_read(names, wanted, has_values) or [*names][:1])
        found, tops = list[dict[str, Any]](), tops_of(wanted)
        for row in rows:
            names |= dict.fromkeys(row)
            found.append({name: value for name, value in row.items() if name in tops})
        return found, list(names)
    except ImportError:
        raise ConfigError(
            f"{source}: the library datasets reads this, and it is not installed. Next: pip install -c "
            "constraints.txt -e '.[readers]', or a file .jsonl or .parquet"
        ) from None
    except Exception as error:  # the library and its readers raise many kinds
        first_line = (str(error).splitlines() or [""])[0][:200]
        raise ConfigError(
            f"{source}: no rows of split {split!r} can be read ({type(error).__name__}: {first_line}). "
            f"Allowed: a file ({', '.join(KINDS)}), a folder, or a name on the hub. Next: check "
            "it, or the network"
        ) from None
