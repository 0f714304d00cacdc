"""Compares the fields that the models here saved: python compare.py TOLERANCE FILE.npz FILE.npz..."""

import sys

import numpy as np

tolerance, first, *others = float(sys.argv[1]), *sys.argv[2:]
expected = np.load(first)
for file in others:
    found = np.load(file)
    for name in expected.files:
        scale = np.abs(expected[name]).max()
        assert scale > 0, f"{name} of {first} is zero everywhere"
        difference = np.abs(found[name] - expected[name]).max() / scale
        assert difference < tolerance, f"{name} of {file} differs from {first} by {difference:.1e} of its largest value"
        print(f"{file} {name}: as in {first} up to {difference:.1e}")
