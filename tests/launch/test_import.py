import subprocess
import sys


def test_import_without_mpirun():
    subprocess.run([sys.executable, "-c", "import mpixla"], check=True, timeout=120)
