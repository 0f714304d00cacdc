"""Files that the build has put into the package."""

import sys
from pathlib import Path


def own_file(name: str) -> Path:
    """Return a built file's path in the package's folders (two after ``pip install -e``), whether it exists or not."""
    files = [Path(folder, name) for folder in sys.modules[__package__.partition(".")[0]].__path__]
    return next((file for file in files if file.exists()), files[0])
