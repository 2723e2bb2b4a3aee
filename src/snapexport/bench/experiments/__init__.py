"""Lists the experiments by name. Each module has:

    HELP                    a line
    DEVICES                 devices that it runs on: cpu, cuda
    DEFAULT, QUICK, CUDA    its options on the CPU, at tiny sizes, and on a GPU
    run(setup, options, results)
    summary(sections)       rows computed from the sections (optional)
    tables(report)          tables for a page or a terminal

`speed` and the load test are `snapexport bench BUILD`: they measure a build that is given.
"""

from types import ModuleType

from snapexport.bench.experiments import (
    context,
    equal_memory,
    export,
    host,
    naive,
    overhead,
    peers,
    peers1b,
    plan,
    prepack,
    scale1b,
    top_tokens,
)

EXPERIMENTS: dict[str, ModuleType] = {
    "context": context,
    "equal_memory": equal_memory,
    "overhead": overhead,
    "naive": naive,
    "peers": peers,
    "peers1b": peers1b,
    "scale1b": scale1b,
    "host": host,
    "top_tokens": top_tokens,
    "prepack": prepack,
    "plan": plan,
    "export": export,
}

PAGE = tuple(EXPERIMENTS)[:8]
"""Those of docs/performance.md; `all` on the CPU."""
