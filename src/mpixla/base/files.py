"""Files that the build has put into the package."""

import sys
from pathlib import Path


def own_file(name: str) -> Path:
    """Return a file that the build has put into the package, which after ``pip install -e`` has two folders."""
    files = [Path(folder, name) for folder in sys.modules[__package__.partition(".")[0]].__path__]
    return next((file for file in files if file.exists()), files[0])
