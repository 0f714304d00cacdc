"""The commands on documentation pages: each is run here, or a table says where it is run.

The output of scripts is compared with what pages show.
"""

import re
import shlex
import subprocess
import sys

import pytest

import pages
from launch.test_run import ENVIRONMENT

pytestmark = pytest.mark.any_mpi

# Commands that need no more than a word on who runs them. A file or folder of tests must be there.
ELSEWHERE = {
    "make demo": ".ci/run",
    "make test": ".ci/run",
    # Launchers.
    "mpirun -n 4 python -m mpixla.distributed script.py": "tests/launch/test_distributed.py",
    "python -m mpixla run -n 4 --distributed script.py": "tests/launch/test_run.py",
    "python -m mpixla run -n 4 -m mpixla.compat mpi4jax-tokens model.py --days 10": "tests/launch/test_compat.py",
    "mpirun -n 4 --with-ft ulfm --mca async_mpi_finalize 1 python examples/survive.py --kill 2 --at 70": (
        "tests/launch/test_survive.py"
    ),
    "python -m mpixla run -n 4 --check model.py": "tests/launch/test_run.py",
    "python -m mpixla run -n 4 --trace build/traces examples/uneven.py": "tests/examples/test_uneven.py",
    "python -m mpixla.trace build/traces --picture build/uneven.png": "tests/examples/test_uneven.py",
    "python -m mpixla run -n 2 examples/shallow_water.py --save jet.png": "tests/examples/test_shallow_water.py",
    "python -m mpixla run -n 2 examples/overlap.py": "tests/examples/test_overlap.py",
    **{
        f"python -m mpixla run -n {ranks} examples/{name}.py --save {name}.png": f"tests/examples/test_{name}.py"
        for ranks, names in (
            (2, ("tempering", "tensor_parallel", "training")),
            (4, ("adjoint", "conjugate_gradients", "fft", "particles", "workers")),
        )
        for name in names
    },
    "python -m mpixla run -n 4 --distributed examples/sharded.py --save sharded.png": "tests/examples/test_sharded.py",
    "python -m mpixla run -n 4 --check --timeout 60 heat.py": "tests/launch/test_run.py",
    "python -m mpixla run -n 3 --timeout 60 program.py": "test_program_that_hangs, below",
    "export JAX_COMPILATION_CACHE_DIR=$HOME/.cache/jax": "tests/launch/test_compile_cache.py",
    "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0": "tests/launch/test_compile_cache.py",
    "export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1": "tests/launch/test_compile_cache.py",
    "python -m mpixla run -n 4 model.py --size 100": "tests/launch/test_run.py",
    # Several hosts.
    "python -m mpixla run -n 4 --hosts node1,node2 --timeout 60 model.py": "tests/hosts/test_hosts.py",
    "mpirun -hosts node1,node2 -ppn 2 -n 4 python model.py": "tests/hosts/test_hosts.py",
    "mpirun --host node1:2,node2:2 -n 4 -x PATH -x MPIXLA_TIMEOUT=60 ~/mpixla/bin/python model.py": (
        "tests/hosts/test_hosts.py"
    ),
    "python": "docs/other_tools.md: a session at a prompt; test_prompt, below",
}

# Blocks that tests type as they stand.
BLOCKS_ELSEWHERE = {
    **{
        (page, words): "tests/install/test_install.py"
        for page, words in (
            ("README.md", "pip install '.[demo]' mpich"),
            ("gpu.md", "cuda13"),
            ("install.md", "pip install mpich"),
            ("install.md", "module load openmpi"),
            ("install.md", "cuda13"),
            ("install.md", "-m mpixla test"),
            ("clusters.md", "/path/to/mpixla"),
            ("clusters.md", "~/mpich-lib"),
            ("clusters.md", "-m mpixla test"),
            ("other_tools.md", "pip install ipyparallel"),
        )
    },
    ("other_tools.md", "mpicc"): "tests/launch/test_c_example.py",
    ("clusters.md", "#SBATCH"): "tests/hosts/test_slurm.py",
    ("clusters.md", "#PBS"): "tests/hosts/test_hosts.py",
    ("clusters.md", "ch-run"): "tests/install/test_container.py",
}

# How a page starts a script that it shows, and what it prints then.
SCRIPT = re.compile(r"python -m mpixla run -n (\d+) (\w+\.py)$")


def commands(block):
    """Return the commands of a block, without remarks, and what is printed below each."""
    if block.language == "sh":
        lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
        parsed = [(shlex.split(line, comments=True) and re.sub(r"\s+#.*$", "", line)) for line in lines]
        return [(line, "") for line in parsed if line and not line.startswith("#")]
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)
    return [(command, output) for command, output in found]


def shown():
    for page in pages.PAGES:
        typed = [pages.block(page, words) for name, words in BLOCKS_ELSEWHERE if name == page.name]
        for block in pages.blocks(page, "sh", "console"):
            if block in typed:
                continue
            for command, output in commands(block):
                yield page, block, command, output


def is_compared(block, command):
    """Return whether the command starts a script that the page shows, with its output below."""
    return block.language == "console" and SCRIPT.match(command) is not None


def test_every_command_is_run_or_explained():
    found = {command: is_compared(block, command) for _, block, command, _ in shown()}
    assert [command for command, compared in found.items() if not compared and command not in ELSEWHERE] == []
    assert [command for command in ELSEWHERE if command not in found] == []
    for how in (*ELSEWHERE.values(), *BLOCKS_ELSEWHERE.values()):
        for file in re.findall(r"tests/[\w/]+(?:\.py)?|^\.ci/run", how):
            assert (pages.ROOT / file).exists(), file
        for test in re.findall(r"\btest_\w+(?=, below)", how):
            assert test in globals()


def script(page, name, before):
    """Return the script that the page's blocks make up, from the block of this name to a line."""
    blocks = [block for block in pages.blocks(page, "python") if block.line < before]
    (first,) = (i for i, block in enumerate(blocks) if block.text.startswith(f"# {name}\n"))
    return "".join(block.text for block in blocks[first:])


def typed(command, folder):
    """Return the output of a command that begins with `python`."""
    program, *arguments = shlex.split(command)
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *arguments],
        env=ENVIRONMENT,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_scripts_print_the_output_on_pages(tmp_path):
    compared = []
    for page, block, command, output in shown():
        if is_compared(block, command):
            found = SCRIPT.match(command)
            (tmp_path / found[2]).write_text(script(page, found[2], block.line))
            assert typed(command, tmp_path).startswith(output), block.place
            compared.append((page.name, found[1]))
    assert compared == [("README.md", "4"), ("tutorial.md", "4"), ("tutorial.md", "1")]


def test_program_that_hangs(job):
    """docs/trouble.md's program, and the lines of its report that say why."""
    block = pages.block(pages.DOCS / "trouble.md", "# program.py")
    report = (pages.DOCS / "trouble.md").read_text()
    done = job(3, block.text.replace("# program.py\n", "", 1), check=False, MPIXLA_TIMEOUT="2")
    assert "Rank 1 has not come: it is in no call of mpixla;" in done.stderr
    for line in ("Rank 1 has not come: it is in no call of mpixla;", "write_checkpoint: time.sleep(1000)"):
        assert line in done.stderr
        assert line in report
    assert done.returncode == 124


def test_prompt(job):
    """docs/other_tools.md's session."""
    (session,) = (b for b in pages.blocks(pages.DOCS / "other_tools.md", "console") if b.text.startswith("$ python\n"))
    typed = re.findall(r"^>>> (.*)$", session.text, re.MULTILINE)
    code = f"""
        import code
        console = code.InteractiveConsole()
        for line in {typed!r}:
            console.push(line)
        """
    done = job(1, code)
    said = done.stdout + done.stderr
    assert typed
    for line in re.findall(r"^(?!>>>|\$|Traceback|  )(.+)$", session.text, re.MULTILINE):
        assert line in said, said
