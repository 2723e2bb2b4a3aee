"""Checks whether a model answers, by a real prompt.

When the process of a Python model is killed, /v2/health/ready and the model's own readiness still
return 200 (server #7230). Unloading and loading the model restarts it, if the server was started
with --model-control-mode=explicit; otherwise the server has to be restarted.

    python -m snapexport.serving.triton.liveness http://localhost:8000 NAME [--recover]

exits with 0 if the model answers, and with 1 if it does not. It checks the unary model too, which
waits for ever for the answers of a killed process.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request

from snapexport.serving.triton.interface import CODE_IN_MESSAGE, UNARY_SUFFIX

PROMPT = {"input_ids": [0], "max_tokens": 1, CODE_IN_MESSAGE: True}
"""The cheapest request: prefill, and one token."""
INDEX_SECONDS = 2
UNLOAD_SECONDS = 2
"""Seconds to wait for an unloading; with requests of a dead process it never ends."""


def is_alive(http: str, model: str, seconds: float = 10) -> bool:
    """Whether the model answers within `seconds`.

    A full queue counts as an answer: a model that refuses is alive.
    """
    try:
        _post(f"{http}/v2/models/{model}/generate", PROMPT, seconds)
    except urllib.error.HTTPError as error:
        return "UNAVAILABLE: " in error.read().decode(errors="replace")
    except (OSError, ValueError):
        return False
    return True


def recover(http: str, model: str, seconds: float = 120) -> bool:
    """Unload and load the model, by explicit model control. Returns whether it answers then."""
    control = f"{http}/v2/repository/models/{model}"
    end = time.monotonic() + seconds
    try:
        _post(f"{control}/unload", {}, seconds)
        _wait_until_unloaded(http, model)
        _post(f"{control}/load", {}, end - time.monotonic())
        while not is_alive(http, model) and time.monotonic() < end:
            time.sleep(0.5)
            _post(f"{control}/load", {}, end - time.monotonic())
    except (OSError, ValueError):
        return False
    return is_alive(http, model)


def models_beside(http: str, model: str) -> list[str]:
    """The model, and its unary model if the repository has it."""
    try:
        index = json.loads(_post(f"{http}/v2/repository/index", {}, INDEX_SECONDS))
    except (OSError, ValueError):
        return [model]
    return [model, *{one["name"] for one in index if one["name"] == model + UNARY_SUFFIX}]


def main() -> int:
    """As a command: 0 or 1, for a health check of a container."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url", help="the server's HTTP address")
    parser.add_argument("model", help="the streaming model's name")
    parser.add_argument("--seconds", type=float, default=10, help="how long to wait for a token")
    parser.add_argument("--recover", action="store_true", help="unload and load it if it is dead")
    arguments = parser.parse_args()
    recovered = False
    for model in models_beside(arguments.url, arguments.model):
        # Places that wait for the dead process are lost, also of a model that still answers.
        alive = not recovered and is_alive(arguments.url, model, arguments.seconds)
        if not alive and arguments.recover:
            alive = recovered = recover(arguments.url, model)
        if not alive:
            print(f"{model}: does not answer")
            return 1
    print(f"{arguments.model}: answers")
    return 0


def _wait_until_unloaded(http: str, model: str) -> None:
    end = time.monotonic() + UNLOAD_SECONDS
    while time.monotonic() < end:
        models = json.loads(_post(f"{http}/v2/repository/index", {}, UNLOAD_SECONDS))
        states = {one.get("state") for one in models if one["name"] == model}
        if not states & {"READY", "UNLOADING"}:
            return
        time.sleep(0.1)


def _post(url: str, body: object, seconds: float) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=max(seconds, 0.1)) as answer:
        content: bytes = answer.read()
        return content


if __name__ == "__main__":
    sys.exit(main())
