"""Runs one Dynamo worker in this process, until a signal ends it."""

import os
import signal

import uvloop
from dynamo.common.backend.worker import Worker, WorkerConfig

from snapexport.runtime.chat.template_files import has_template
from snapexport.serving.dynamo.engine import MODES, SnapexportEngine
from snapexport.serving.dynamo.options import WorkerOptions
from snapexport.serving.model import require_tokenizer

_ENDPOINT = "generate"


def run_worker(options: WorkerOptions) -> None:
    """Load the build, and serve it until SIGTERM or SIGINT. Raises UserError."""
    require_tokenizer(options)
    engine = SnapexportEngine(options)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model's card is the build's own files
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Dynamo's worker takes them from here on
    uvloop.run(Worker(engine, _config(options)).run())


def _config(options: WorkerOptions) -> WorkerConfig:
    chats = options.chat_template is not None or has_template(options.build)
    return WorkerConfig(
        namespace=options.namespace,
        component=options.component_name,
        endpoint=_ENDPOINT,
        model_name=str(options.build.absolute()),
        served_model_name=options.model_name,
        endpoint_types="chat,completions" if chats else "completions",
        discovery_backend=options.discovery,
        event_plane=options.event_plane,
        custom_jinja_template=str(options.chat_template) if options.chat_template else None,
        enable_kv_routing=False,  # a compressed cache has no blocks that prompts could share
        disaggregation_mode=MODES[options.role],
    )
