"""One small run, made once for all formats; read only."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stages.command import main
from tests.exports import Made, make_run

Export = Callable[..., Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_run(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def export(made: Made, tmp_path: Path) -> Export:
    """Exports the run into a new folder; returns that."""

    def command(to: str, *options: object) -> Path:
        folder = tmp_path / f"{to} {len(list(tmp_path.iterdir()))}"
        argv = ["export", made.run_dir, "--to", to, folder, *options]
        assert main([str(part) for part in argv]) == 0
        return folder

    return command
