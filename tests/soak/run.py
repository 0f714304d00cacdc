"""Random correct programs for as long as it is told, with every value compared with NumPy's: make soak."""

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "bench")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", type=int, help="only the program of this number")
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--show", action="store_true", help="print it as a script of its own, and run nothing")
    parser.add_argument("--ranks", type=int, help="with --show: for this many ranks")
    parser.add_argument("--control", action="store_true", help="the same programs without communication")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a program counts as stuck")
    parser.add_argument("--write", action="store_true", help="the figures into CONTRIBUTING.md")
    options = parser.parse_args()
    if options.show:
        from soak.program import draw

        print(draw(options.seed, options.program or 0, options.ranks or 2).script())
        return 0
    from soak.driver import Driver

    return Driver(options).run()


if __name__ == "__main__":
    sys.exit(main())
