"""Arguments that an example refuses: one sentence for all ranks, which says what to change."""

import pytest

LAUNCHER = ("-m", "mpixla.distributed")
REFUSED = [
    (
        "training",
        "--points 60 --batch 25",
        "60 points cannot be split into batches of 25 on 2 ranks: --batch must divide",
    ),
    ("training", "--data out.txt", "training.py: --data out.txt: the name must end in .npz.\n"),
    ("adjoint", "--size 13", "13 x 13 cells cannot be split into 2 x 1 equal blocks of at least 2 x 2: make "),
    ("conjugate_gradients", "--size 13", "into 2 x 1 equal blocks: make --size a multiple of 2"),
    ("fft", "--size 15", "--size 15: a grid of 2 x 1 processes cannot share so many points. Take a multiple of 2.\n"),
    ("overlap", "--size 5 6", "5 x 6 cells cannot be split into 2 strips"),
    ("particles", "--particles 300 --room 10", "--room 10: there is a process that begins with "),
    ("shallow_water", "--save film.jpg", "--save film.jpg: the name must end in .gif, .mp4 or .png.\n"),
    ("shallow_water", "--size 1 1", "2 processes cannot share 1 x 1 cells; use fewer processes or more cells.\n"),
    ("sharded", "--size 25", "--size 25: 2 processes cannot have equally many rows. Take a multiple of 2."),
    ("tempering", "--replicas 5", "--replicas 5: 2 processes cannot have equally many. Take a multiple of 2"),
    (
        "tensor_parallel",
        "--hidden 13",
        "13 hidden units cannot be split over 2 ranks: make --hidden a multiple of that.",
    ),
    ("workers", "--size 25 --tile 10", "--size 25: it is cut into tiles of 10 pixels. Take a multiple of --tile."),
]


def check(refused, sentence):
    assert refused.returncode == 2
    assert refused.stderr.count(sentence) == 1
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [pytest.param(*case, marks=[] if case[0] == "training" else pytest.mark.long) for case in REFUSED],
)
def test_refused(example, name, arguments, sentence):
    python = LAUNCHER if name == "sharded" else ()
    check(example(2, name, *arguments.split(), check=False, python=python), sentence)


@pytest.mark.long
def test_sharded_needs_the_launcher(example):
    check(example(2, "sharded", check=False), "mpixla.distributed.initialize() needs the launcher")
