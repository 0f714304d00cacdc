"""The module that the examples share."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import showing


def test_help_shows_defaults():
    parser = showing.Parser("An example.")
    parser.add_argument("--size", type=int, default=7, help="cells")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", type=int, help="how much")
    parser.add_argument("--hidden", default=argparse.SUPPRESS, help="of none")
    parser.takes_picture()
    said = " ".join(parser.format_help().split())
    assert (
        "--size SIZE cells (default: 7) --seed SEED (default: 0) --room ROOM how much --hidden HIDDEN of none" in said
    )
    assert said.count("default:") == 2
    assert parser.parse_args([]).size == 7
