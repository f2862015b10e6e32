"""Rows of a data set: by name from the Hugging Face hub, or from a local file or folder."""

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}


def load_rows(
    source: str, split: str = "train", config: str | None = None, revision: str | None = None
) -> list[dict[str, Any]]:
    """Returns the rows of one split, in order; raises ConfigError for what cannot be read.

    `source` is a file (.parquet, .jsonl, .json, .csv; its only split), a folder that `datasets` saved or that
    is laid out as on the hub, or a name on the hub, with a configuration and a revision (by default the
    newest), which needs the network unless it is cached.
    """
    path = Path(source)
    try:
        import datasets

        if path.is_file():  # streamed, so that nothing is copied into a cache
            kind = KINDS[path.suffix]
            rows = datasets.load_dataset(kind, data_files=source, split="train", streaming=True)
        elif (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            saved = datasets.load_from_disk(source)
            rows = saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            rows = datasets.load_dataset(
                source, config, split=split, revision=revision, streaming=path.is_dir()
            )
        return [dict(row) for row in rows]
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
