"""Epochs over rows: which weights stay on the disk while a start may still go on from them."""

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.artifacts.checkpoints import Checkpoints
from stages.wiring.epochs import Trained, train_epochs


class Counting:
    """A trainer whose weights are the number of its updates."""

    num_updates = 0

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "weights").write_text(str(self.num_updates))

    def save_checkpoint(self, folder: Path) -> dict[str, Any]:
        (folder / "state").write_text(str(self.num_updates))
        return {}

    def load_checkpoint(self, folder: Path) -> None:
        self.num_updates = int((folder / "state").read_text())

    def close(self) -> None:
        pass


def trained(folder: Path, losses: Sequence[float], stop_before: int = 99) -> Trained[float]:
    """Trains for three epochs of one update each, with a loss at each look; fails before an update."""

    @contextmanager
    def progress(*_: Any) -> Any:
        yield lambda number: None

    trainer: Any = Counting()
    start: Any = SimpleNamespace(
        folder=folder,
        stage="dpo",
        seed=0,
        checkpoints=Checkpoints(folder, "dpo", print),
        progress=progress,
        stop_if_asked=lambda: None,
        metrics=lambda values: None,
        move_to_output=lambda path, name: path.rename(folder / name),
    )

    def train(rows: Sequence[int]) -> dict[str, float]:
        if trainer.num_updates == stop_before - 1:
            raise KeyboardInterrupt
        trainer.num_updates += 1
        return {}

    return train_epochs(
        start,
        trainer,
        num_rows=4,
        batch_rows=4,
        max_epochs=3,
        patience=3,
        train=train,
        look=lambda epoch, updates: losses[epoch],
        keep=lambda looks: looks.index(min(looks)),
    )


def test_a_start_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, [4.0, 2.0, 1.0], stop_before=3)
    [newest] = tmp_path.glob("checkpoints/u00000002-*")
    (newest / "state").write_text("damaged")
    # Another machine rounds in other ways: now the first epoch remains the best.
    made = trained(tmp_path, [4.0, 2.0, 2.1, 3.0])
    assert made.kept == 1
    assert (made.folder / "weights").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "policy"]
