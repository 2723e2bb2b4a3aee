"""Measures what weights in few bits cost: our builds, llama.cpp's and onnxruntime-genai's formats.

    python -m tools.studies.quality.weights MODEL.gguf DOCUMENTS --peers-python PEERS/bin/python \
        --work FOLDER --out RESULT.json

All but the file itself are made from the same fp32 weights: the file's, with channels in another
order (`reordered.py`). The reference is transformers in fp32. A passage is forced through each
runtime token by token or at once; losses are of log likelihood, in nats a token.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.sampling import log_softmax
from tools.studies.quality.reordered import reordered
from tools.studies.speed.from_gguf import checkpoint_of

Rows = NDArray[np.floating[Any]]
"""The log likelihoods of all tokens after each token [T,V]."""

BATCH = 30
THREADS = 2


class Job(NamedTuple):
    """file: the model's. source: its weights in fp32, in another order. texts: [passages, T]."""

    file: Path
    source: Path
    work: Path
    texts: NDArray[np.int64]
    peers: Path | None


class Made(NamedTuple):
    """A model in few bits. bits: a weight, of all matrices, with their scales."""

    bits: float
    rows: Iterable[Rows]


def passages(folder: Path, tokenizer: Any, count: int, length: int) -> NDArray[np.int64]:
    """One of each text, from two thirds of it on."""
    found = []
    for file in sorted(folder.rglob("*.txt")):
        text = file.read_text(errors="replace")
        start = 2 * len(text) // 3
        ids = tokenizer(text[start : start + 8 * length]).input_ids[:length]
        found += [ids] if len(ids) == length else []
    return np.array(found[:count])


def reference(job: Job) -> NDArray[np.float16]:
    """[passages, T - 1, V], kept: a study that was cut need not run it again."""
    file = job.work / f"reference.{'x'.join(map(str, job.texts.shape))}.npy"
    if not file.is_file():
        np.save(file, np.stack([rows.astype(np.float16) for rows in _by_transformers(job)]))
    exact: NDArray[np.float16] = np.load(file, mmap_mode="r")
    return exact


@torch.no_grad()
def _by_transformers(job: Job) -> Iterator[Rows]:
    """In fp32."""
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint_of(job.source, job.work), dtype=torch.float32
    )
    for text in torch.from_numpy(job.texts):
        yield log_softmax(model(text[None, :-1]).logits[0].numpy())


def ours(job: Job, weights: str) -> Made:
    """A build with the full cache: the first token by prefill, the others by decode."""
    out = build_of(job, weights, job.texts.shape[1], BATCH)
    bits = Build.open(out).manifest.bits_per_weight
    assert bits is not None
    return Made(bits, _forced(out, job.texts))


def build_of(job: Job, weights: str, length: int, batch: int) -> Path:
    """With the full cache; made if missing."""
    model = job.file if weights == "keep" else job.source
    out = job.work / f"{job.file.stem}.{weights}.{batch}x{length}.build"
    flags = {"model": model, "weights": weights, "L-max": length, "batch": batch}
    flags |= {"policy": "full", "prefill-chunk": 16, "out": out}
    if not out.is_dir():
        given = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        _run(sys.executable, "-m", "snapexport", "build", *given)
    return out


def _forced(build: Path, texts: NDArray[np.int64]) -> Iterator[Rows]:
    executor = open_executor(Build.open(build), backend="onnxruntime", threads=THREADS)
    for start in range(0, len(texts), BATCH):
        group = texts[start : start + BATCH]
        first = []
        for slot, ids in enumerate(group):
            logits = executor.prefill_prompt(slot, ids[:1]).logits
            first.append(log_softmax(logits.reshape(-1)).astype(np.float32))
        found = [np.stack(first)]
        lengths = np.ones(len(group), np.int64)
        for step in range(1, texts.shape[1] - 1):
            logits = executor.decode(group[:, step], lengths + step - 1, lengths).logits
            found.append(log_softmax(logits).astype(np.float32))  # logits are the next step's, too
        yield from np.stack(found, 1)
    executor.close()


def llama_cpp(job: Job, form: str) -> Made:
    """Quantized by llama.cpp, or the file itself. Its cache is fp16."""
    from gguf import GGUFReader

    made = gguf_of(job, form)
    out, texts = job.work / "llama_cpp.npy", job.work / "texts.npy"
    np.save(texts, job.texts)
    script = "tools.studies.quality.llama_cpp_logits"
    _run(str(job.peers), "-m", script, job.source, form, made, texts, out)
    matrices = [one for one in GGUFReader(made).tensors if len(one.shape) == 2]
    bits = 8 * sum(one.n_bytes for one in matrices) / sum(one.n_elements for one in matrices)
    return Made(float(bits), np.load(out, mmap_mode="r"))


def gguf_of(job: Job, form: str) -> Path:
    """The file in a form."""
    return job.file if form == "file" else job.work / f"{job.source.stem}.{form}.gguf"


def genai(job: Job, precision: str) -> Made:
    """The graph of onnxruntime-genai's builder with its defaults, in ONNX Runtime."""
    model = checkpoint_of(job.source, job.work)
    out = job.work / f"genai.{model.name}.{precision}"  # where its peer looks for it
    if not out.is_dir():
        given = ["-i", model, "-o", out, "-p", precision, "-e", "cpu", "-c", job.work / "cache"]
        _run(str(job.peers), "-m", "onnxruntime_genai.models.builder", *given)
    return Made(_bits_of_graph(out / "model.onnx", job), _at_once(out, job.texts))


def _bits_of_graph(file: Path, job: Job) -> float:
    """Bytes of all large initializers but the rotations, over the weights of the source."""
    import onnx
    from gguf import GGUFReader

    held = 0
    for one in onnx.load(file, load_external_data=False).graph.initializer:
        length = [int(pair.value) for pair in one.external_data if pair.key == "length"]
        held += 0 if "cache" in one.name else sum(length) or len(one.raw_data)
    matrices = [one for one in GGUFReader(job.source).tensors if len(one.shape) == 2]
    return float(8 * held / sum(one.n_elements for one in matrices))


def _at_once(folder: Path, texts: NDArray[np.int64]) -> Iterator[Rows]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(folder / "model.onnx", options)
    decoder = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    shape = 1, decoder["num_key_value_heads"], 0, decoder["head_size"]
    length, nothing = texts.shape[1] - 1, np.zeros(shape, np.float32)
    for text in texts:
        fed = {"input_ids": text[None, :-1], "attention_mask": np.ones((1, length), np.int64)}
        fed |= {"position_ids": np.arange(length)[None]}
        wanted = [one.name for one in session.get_inputs()]
        given = {name: fed.get(name, nothing) for name in wanted}
        yield log_softmax(session.run(["logits"], given)[0][0])


WAYS: dict[str, tuple[Callable[[Job, str], Made], str]] = {  # in the order of the page's rows
    "snapexport keep": (ours, "keep"),
    "llama.cpp, the file": (llama_cpp, "file"),
    "snapexport int8": (ours, "int8"),
    "llama.cpp Q8_0": (llama_cpp, "Q8_0"),
    "llama.cpp Q6_K": (llama_cpp, "Q6_K"),
    "llama.cpp Q4_K_M": (llama_cpp, "Q4_K_M"),
    "llama.cpp Q4_0": (llama_cpp, "Q4_0"),
    "onnxruntime-genai int4": (genai, "int4"),
    "snapexport int4": (ours, "int4"),
}


def compared(made: Made, exact: NDArray[np.float16], job: Job) -> dict[str, Any]:
    """Losses against the reference, and the divergence from it."""
    losses, divergences = [], []
    for text, whole, found in zip(job.texts, exact, made.rows, strict=True):
        wanted = text[1:, None]
        truth, rows = whole.astype(np.float32), found.astype(np.float32)
        losses.append(float(np.take_along_axis(truth - rows, wanted, 1).mean()))
        divergences.append(float((np.exp(truth) * (truth - rows)).sum(-1).mean()))
    return {
        "bits_per_weight": round(made.bits, 3),
        "nats": round(float(np.mean(losses)), 4),
        "nats_se": round(_error(losses), 4),
        "kl": round(float(np.mean(divergences)), 4),
        "kl_se": round(_error(divergences), 4),
    }


def _error(values: list[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5)


def _run(*command: object) -> None:
    subprocess.run([str(one) for one in command], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Print a line for each format, and write them all. A result that is there is added to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("documents", type=Path)
    parser.add_argument("--passages", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--peers-python", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    source = reordered(given.file, given.work)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_of(source, given.work))
    texts = passages(given.documents, tokenizer, given.passages, given.tokens)
    job = Job(given.file, source, given.work, texts, given.peers_python)
    exact = reference(job)
    full = -np.take_along_axis(exact, texts[:, 1:, None], 2).astype(np.float64).mean()
    report = json.loads(given.out.read_text()) if given.out.is_file() else {"rows": []}
    report |= {"model": given.file.name, "passages": len(texts), "tokens": given.tokens}
    report |= {"reference_nats": round(float(full), 4)}
    for name in given.ways:
        make, form = WAYS[name]
        row = {"weights": name} | compared(make(job, form), exact, job)
        print(json.dumps(row), flush=True)
        report["rows"] = [one for one in report["rows"] if one["weights"] != name] + [row]
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
