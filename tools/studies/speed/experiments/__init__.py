"""Lists the experiments by name: each is a record of its options and functions.

`snapexport bench BUILD` measures a given build instead: `src/snapexport/measure/bench/speed.py`.
"""

from tools.studies.speed.experiments import (
    cluster,
    context,
    conversation,
    equal_memory,
    export,
    host,
    naive,
    overhead,
    peer_builds,
    peers,
    plan,
    prepack,
    request,
    simulate,
    sparse_prefill,
    speculation,
    top_tokens,
)
from tools.studies.speed.setup import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "context": context.CONTEXT,
    "equal_memory": equal_memory.EQUAL_MEMORY,
    "overhead": overhead.OVERHEAD,
    "naive": naive.NAIVE,
    "peers": peers.PEERS,
    "peers1b": peers.PEERS1B,
    "scale1b": context.SCALE1B,
    "host": host.HOST,
    "peers_smollm2": peers.PEERS_SMOLLM2,
    "request": request.REQUEST,
    "request_qwen": request.REQUEST_QWEN,
    "peer_builds": peer_builds.PEER_BUILDS,
    "question": request.QUESTION,
    "question_qwen": request.QUESTION_QWEN,
    "top_tokens": top_tokens.TOP_TOKENS,
    "prepack": prepack.PREPACK,
    "conversation": conversation.CONVERSATION,
    "speculation": speculation.SPECULATION,
    "plan": plan.PLAN,
    "export": export.EXPORT,
    "cluster": cluster.CLUSTER,
    "simulate": simulate.SIMULATE,
    "sparse_prefill": sparse_prefill.SPARSE_PREFILL,
}

PAGE = tuple(EXPERIMENTS)[:8]
"""`all` on the CPU: those of docs/speed.md that need nothing fetched."""
