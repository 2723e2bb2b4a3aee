"""The command line: its output, and bad input, which has one form of error and leaves nothing."""

import argparse
import codecs
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from snapexport.cli import prompt
from snapexport.cli.app import main
from snapexport.cli.build import helps
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.graphs.functions.vote import DEFAULTS as VOTE_DEFAULTS
from snapexport.runtime.requests.llm import LLM
from tests.oracle import checkpoints
from tests.refused import refused


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def edit_config(model: Path, **changes: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changes))


def rewrite_header(model: Path, header: bytes) -> None:
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def edited(**changes: object) -> Callable[[Path], object]:
    """A change of config.json."""
    return lambda model: edit_config(model, **changes)


def of_family(architecture: str, model_type: str, **changes: object) -> Callable[[Path], object]:
    return edited(architectures=[architecture], model_type=model_type, **changes)


SLIDING = ["full_attention", "sliding_attention"]
ROPE = {"rope_type": "default", "rope_theta": 1e4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}

BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no such directory": (shutil.rmtree, "no such directory"),
    "no config": (lambda m: (m / "config.json").unlink(), "it has no config.json"),
    "config is not JSON": (lambda m: (m / "config.json").write_text("{"), "is not JSON"),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "has no model.safetensors"),
    "truncated": (lambda m: truncate(m / "model.safetensors"), "is truncated"),
    "empty weights": (lambda m: (m / "model.safetensors").write_bytes(b""), "is truncated"),
    "no header": (
        lambda m: (m / "model.safetensors").write_bytes(b"\4" + bytes(7) + b"oops"),
        "no readable safetensors header",
    ),
    "unknown architecture": (
        edited(architectures=["GPT2LMHeadModel"]),
        "the architecture GPT2LMHeadModel of a model_type 'llama' is not supported",
    ),
    "another model under a verified name": (
        edited(model_type="granite"),
        "the architecture LlamaForCausalLM of a model_type 'granite' is not supported",
    ),
    "broken generation config": (
        lambda m: (m / "generation_config.json").write_text("{"),
        "is not JSON",
    ),
    "sampling that no run takes": (
        lambda m: (m / "generation_config.json").write_text('{"temperature": NaN}'),
        "generation_config.json: temperature nan cannot be used",
    ),
    "end token is no number": (
        lambda m: (m / "generation_config.json").write_text('{"eos_token_id": [3, "x"]}'),
        "eos_token_id [3, 'x']",
    ),
    "index without a map": (
        lambda m: (m / "model.safetensors.index.json").write_text("{}"),
        "has no weight_map",
    ),
    "header is a list": (lambda m: rewrite_header(m, b"[]"), "no readable safetensors header"),
    "entry without offsets": (
        lambda m: rewrite_header(m, b'{"a": {"dtype": "F32"}}'),
        "no readable safetensors header",
    ),
    "code of its own": (
        edited(architectures=["EvilForCausalLM"], auto_map={"AutoConfig": "x.y"}),
        "the architecture EvilForCausalLM of a model_type 'llama' is not supported",
    ),
    "quantized": (edited(quantization_config={"quant_method": "x"}), "is quantized"),
    "length-dependent RoPE": (
        edited(rope_parameters=DYNAMIC, max_position_embeddings=32),
        "is above the model's position limit 32",
    ),
    "layers of another kind": (
        edited(layer_types=["full_attention", "chunked_attention"]),
        "layers of type 'chunked_attention' are not supported in a model_type 'llama'",
    ),
    "layers that slide over nothing": (
        of_family("Qwen2ForCausalLM", "qwen2", layer_types=SLIDING),
        "layers are of type 'sliding_attention', but sliding_window is None",
    ),
    "attention in both directions": (
        of_family("Gemma2ForCausalLM", "gemma2", use_bidirectional_attention=True),
        "attends in both directions",
    ),
    "an encoder": (
        of_family("BertForMaskedLM", "bert"),
        "the architecture BertForMaskedLM of a model_type 'bert' is not supported",
    ),
    "RoPE by layer type": (
        edited(rope_parameters={"full_attention": ROPE}),
        "a model_type 'llama' has only one",
    ),
    "length-dependent RoPE of one layer type": (
        of_family(
            "Gemma3ForCausalLM",
            "gemma3_text",
            layer_types=SLIDING,
            rope_parameters={
                "full_attention": DYNAMIC,
                "sliding_attention": ROPE | {"rope_type": "yarn", "factor": 4.0},
            },
        ),
        "RoPE of type 'dynamic'",
    ),
    "another vocabulary": (edited(vocab_size=99), "has shape"),
}


@pytest.mark.parametrize("name", BAD_CHECKPOINTS)
def test_build_refuses_a_bad_checkpoint_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, name: str
) -> None:
    damage, message = BAD_CHECKPOINTS[name]
    damage(model)
    out = tmp_path / "out"
    flags = ["--L-max", 64, "--batch", 1]
    assert message in refused(capsys, "build", "--model", model, *flags, "--out", out)
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--L-obs", "20", "--L-recent", "16", "--K", "8"],
            "--L-obs 20 is larger than --L-recent 16",
        ),
        (["--L-max", "1025"], "--L-max 1025 is above the model's position limit 1024"),
        (["--L-max", "0"], "--L-max 0"),
        (["--L-max", "many"], "argument --L-max: 'many' is not a number of tokens"),
        (["--batch", "0"], "--batch 0"),
        (["--prefill-chunk", "65"], "--prefill-chunk 65"),
        (["--prefill-chunk", "4", "--L-obs", "5"], "--prefill-chunk 4"),
        (["--kv-budget", "4"], "--kv-budget 4 is below 5, the sum of 4 sinks and a ring of"),
        (["--kv-budget", "0"], "--kv-budget 0 is below 5, the sum of 4 sinks"),
        (
            ["--kv-budget", "16", "--L-recent", "20"],
            "--kv-budget 16 is below 24, the sum of 4 sinks and a ring of 20",
        ),
        (
            ["--kv-budget", "16", "--K", "12"],
            "is below 17, the sum of 4 sinks and a ring of at least 1 and 12",
        ),
        (["--kv-budget", "65"], "--kv-budget 65 is more than --L-max 64"),
        (["--kv-budget", "9", "--L-recent", "4", "--K", "2"], "given together with both"),
        (["--policy", "full", "--kv-budget", "16"], "not supported with --policy full"),
        (["--L-obs", "100", "--L-recent", "100", "--K", "4"], "--L-obs 100 is more than the 64"),
        (["--pool-kernel", "2"], "--pool-kernel 2 is even"),
        (["--policy", "streaming", "--K", "4"], "keeps no top-k"),
        (
            ["--policy", "streaming", "--vote", "sum"],
            "not supported with --policy stream",
        ),
        (["--policy", "sage", "--pool-kernel", "7"], "--policy sage means --pool-kernel 1"),
        (["--policy", "snapkv", "--softmax", "candidates"], "means --softmax causal"),
        (["--policy", "snapkv", "--L-sink", "4"], "--policy snapkv means --L-sink 0"),
        (["--policy", "full", "--budget", "pyramid"], "not supported with --policy full"),
        (["--vote", "loudest"], "--vote 'loudest' is not known"),
        (["--policy", "magic"], "--policy 'magic' is not known"),
        (["--policy", "full", "--baseline"], "--baseline"),
        (["--L-sink", "-1", "--L-recent", "8", "--K", "4"], "--L-sink -1"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_build_refuses_wrong_flags(
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    tmp_path: Path,
    flags: list[str],
    message: str,
) -> None:
    required = ["--model", checkpoint, "--L-max", 64, "--out", tmp_path / "out"]
    assert message in refused(capsys, "build", *required, *flags)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def spelling_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build with a tokenizer: one token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from tests.builds import build

    directory = tmp_path_factory.mktemp("spelling")
    model = checkpoints.make("llama", directory / "model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(model / "tokenizer.json"))
    return build(model, directory / "b", L_max=64, L_recent=12, K=8, L_obs=4, prefill_chunk=24)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", "x" * 65], "a prompt has 65 tokens, the build takes 64"),
        (["--prompt", ""], "a prompt is empty"),
        (["--prompt-file", "/nonexistent"], "cannot read /nonexistent"),
        (["--prompt", "x", "--max-tokens", "0"], "--max-tokens 0"),
        (["--prompt", "x", "--temperature", "nan"], "--temperature nan"),
        (["--prompt", "x", "--top-p", "2"], "--top-p 2.0"),
        (["x", "--temperature", "hot"], "'hot' is not a number, such as 0.7"),
        (["x", "--top-k", "1.5"], "'1.5' is not a whole number"),
        (["x" * 1025], "has 1,025 tokens, the model takes 1,024 at the most, this build 64"),
        (["--prompt", "x", "--baseline"], "has no baseline graphs"),
        ([], "a prompt is missing"),
    ],
)
def test_generate_refuses_impossible_requests(
    capsys: pytest.CaptureFixture[str], spelling_build: Build, flags: list[str], message: str
) -> None:
    assert message in refused(capsys, "generate", spelling_build.directory, *flags)


def test_generate_refuses_a_prompt_that_is_not_utf8(
    capsys: pytest.CaptureFixture[str], spelling_build: Build, tmp_path: Path
) -> None:
    (tmp_path / "p").write_bytes(b"abc\xff")
    message = refused(capsys, "generate", spelling_build.directory, "--prompt-file", tmp_path / "p")
    assert "not UTF-8" in message


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
def test_prompt_files_are_read_as_windows_writes_them(encoding: str, tmp_path: Path) -> None:
    text = "é 漢字\r\n\r\n👩 end\r\n"
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (tmp_path / "p").write_bytes(mark + text.encode(encoding))
    arguments = argparse.Namespace(prompt=None, prompt_file=str(tmp_path / "p"))
    assert prompt.read(arguments) == text.replace("\r\n", "\n")


def test_a_prompt_of_many_bytes_is_refused_before_it_is_tokenized(
    capsys: pytest.CaptureFixture[str],
    spelling_build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "p").write_bytes(b"x" * (1 << 17))
    flags = ("generate", spelling_build.directory, "--prompt-file")
    assert "has 131072 bytes, 65536 are read" in refused(capsys, *flags, tmp_path / "p")
    llm = LLM(spelling_build.directory)
    for ask in (llm.generate, lambda text: llm.score("x", text)):
        with pytest.raises(UserError, match="131072 bytes, 65536 are read"):
            ask("x" * (1 << 17))
    monkeypatch.setattr(prompt, "MOST_BYTES", 1 << 16)
    assert "more than 65536 bytes" in refused(capsys, *flags, "/dev/zero")


def test_generate_prints_the_text_of_its_json(
    capsys: pytest.CaptureFixture[str], spelling_build: Build
) -> None:
    flags = ["generate", str(spelling_build.directory), "--prompt", "hello", "--max-tokens", "5"]
    assert main([*flags, "--ignore-eos", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (len(report["token_ids"]), report["finish_reason"]) == (5, "length")
    assert main([*flags, "--ignore-eos"]) == 0
    assert capsys.readouterr().out == report["text"] + "\n"


def test_inspect_counts_bytes_and_shows_the_kept_positions(
    capsys: pytest.CaptureFixture[str], spelling_build: Build
) -> None:
    flags = ["inspect", str(spelling_build.directory), "--prompt", "x" * 60]
    assert main([*flags, "--json", "--verify"]) == 0
    report = json.loads(capsys.readouterr().out)
    # keys and values, 2 layers, 2 KV heads, 24 or 64 slots, head size 16, 4 bytes
    assert report["memory"]["cache_bytes_per_request"] == 2 * 2 * 2 * 24 * 16 * 4
    assert report["memory"]["full_cache_bytes_per_request"] == 2 * 2 * 2 * 64 * 16 * 4
    assert report["unverified_weights"] == []
    assert report["operators"]["compress"]["snapexport::SnapKVSelect"] == 2
    for layer in report["prompt"]["topk_positions"]:
        for head in layer:
            assert head == sorted(head)
            assert set(head) <= set(range(4, 48))
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert out.count("head ") >= 4
    summary = out.partition("\nposition 0")[0].splitlines()
    assert all(line == line.rstrip() for line in summary)  # a pipe gets no padding
    assert "SnapKVSelect" not in out, "operators stand where no prompt is given"
    assert main(["inspect", flags[1]]) == 0
    assert "snapexport::SnapKVSelect" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "argv", "extra"),
    [
        ("torch", ["build", "--model", "MODEL", "--L-max", "8", "--out", "y"], "snapexport[build]"),
        ("onnxruntime", ["generate", "x", "--prompt", "y"], "snapexport[cpu]"),
        ("polygraphy", ["diff", "x"], "snapexport[build]"),
    ],
)
def test_a_missing_package_is_refused_with_its_extra(
    checkpoint: Path, tiny_build: Build, package: str, argv: list[str], extra: str
) -> None:
    argv = [str(checkpoint) if word == "MODEL" else word for word in argv]
    if argv[1] == "x":
        argv = [argv[0], str(tiny_build.directory), *argv[2:]]
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from snapexport.cli.app import main; sys.exit(main({argv!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: the package '{package}' is not installed\n\nhint: ")
    assert extra in done.stderr


def test_build_json_is_a_summary(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    flags = ["--model", str(checkpoint), "--out", str(tmp_path / "b"), "--json"]
    assert main(["build", *flags, "--L-max", "64", "--kv-budget", "16"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["slots_per_layer"] == [16, 16]
    assert summary["memory"]["compression"] == 4.0


@pytest.mark.parametrize("stage", VOTE_DEFAULTS)
def test_the_help_of_build_names_each_default_of_the_vote(stage: str) -> None:
    assert f"(default: {VOTE_DEFAULTS[stage]}" in helps()[stage]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["build", "--L-ring", "600"], "see `snapexport build --help`"),
        (["plan", "--memroy=2G"], "did you mean --memory? see `snapexport plan --help`"),
        (["build", "--lmax", "8"], "did you mean --L-max? see `snapexport build --help`"),
        (["build", "--L_max", "8"], "did you mean --L-max? see `snapexport build --help`"),
        (["build", "--kvbudget=8"], "did you mean --kv-budget? see `snapexport build --help`"),
        (["build", "--ctx-size", "8"], "did you mean --L-max? see `snapexport build --help`"),
        (["build", "--vote", "sums"], "did you mean sum? choose from sum, sum-squares"),
        (["biuld"], "did you mean build? see `snapexport --help`"),
    ],
)
def test_an_unknown_flag_is_answered_by_its_command(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2  # whatever lacks beside
    assert f"hint: {hint}" in capsys.readouterr().err


def test_a_folder_of_several_gguf_files_is_refused_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "dcba":
        (tmp_path / f"{name}.gguf").touch()
    out = str(tmp_path / "out")
    assert main(["build", "--model", str(tmp_path), "--L-max", "64", "--out", out]) == 2
    hint = "hint: name one of its 4 GGUF files: a.gguf, b.gguf, c.gguf, ..."
    assert hint in capsys.readouterr().err
