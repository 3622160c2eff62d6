"""GPUs of a host that has none: the driver's library, built anew, and what its devices do."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"


class Gpus:
    """A folder for ``LD_LIBRARY_PATH``; the real ``pynvml`` finds the library there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        command = ["gcc", "-shared", "-fPIC", "-o", str(folder / LIBRARY), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)

    def use(self, *percents: object) -> None:
        """One figure for each GPU. Replaced as a whole: it is read while it is written."""
        new = self.folder / "new"
        new.write_text("".join(f"{percent}\n" for percent in percents))
        new.replace(self.folder / "utilization")

    def stick(self, *, stuck: bool) -> None:
        """Whether the driver answers no call until it is let go again."""
        path = self.folder / "stuck"
        path.touch() if stuck else path.unlink()
