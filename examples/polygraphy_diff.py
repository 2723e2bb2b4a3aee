"""Compares the decode graphs of two builds by Polygraphy, on the same inputs.

usage: python examples/polygraphy_diff.py BUILD OTHER_BUILD

The builds differ in a choice that must not change outputs, such as --target. Inputs are zeros but
for tokens and positions, so that both graphs see the same cache.
"""

import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator, SimpleCompareFunc

from snapexport.contract.build_directory import Build

builds = [Build.open(Path(name)) for name in sys.argv[1:]]
specs = builds[0].manifest.graphs["decode"].inputs
feeds = OrderedDict((spec.name, np.zeros(spec.shape, spec.dtype)) for spec in specs)
feeds["input_ids"][:] = 5
feeds["prompt_length"][:] = 1
feeds["position_ids"][:] = 1

runners = [
    OnnxrtRunner(SessionFromOnnx(str(build.graph("decode"))), name=build.directory.name)
    for build in builds
]
results = Comparator.run(runners, data_loader=[feeds])
within = SimpleCompareFunc(atol=1e-3, rtol=1e-3)
agree = Comparator.compare_accuracy(results, compare_func=within)
print("the graphs agree" if agree else "the graphs differ")
sys.exit(not agree)
