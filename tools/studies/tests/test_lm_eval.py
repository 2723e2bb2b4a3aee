"""lm-evaluation-harness runs on builds of the bundled checkpoint, with tasks that lie beside."""

import json
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from snapexport import SamplingParams
from snapexport.builder import build
from snapexport.errors import UserError
from snapexport.vault import CHECKPOINT, make_prompt
from tools.studies.lm_eval import register
from tools.studies.lm_eval.__main__ import main
from tools.studies.lm_eval.model import SnapexportLM

pytestmark = pytest.mark.slow

TASKS = Path(__file__).parent / "lm_eval"
TOKENS = 512
SIZES: dict[str, Any] = {"L_max": 544, "kv_budget": 96, "batch": 3, "pool_kernel": 7}
DOCUMENTS = 12
SEED = 900_000


@pytest.fixture(scope="module")
def snapstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("harness") / "snapstream"
    return build(CHECKPOINT, out, baseline=True, **SIZES).directory


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("harness") / "streaming"
    return build(CHECKPOINT, out, policy="streaming", **SIZES).directory


@pytest.fixture(scope="module")
def compressed(snapstream: Path) -> SnapexportLM:
    return SnapexportLM(build=snapstream, threads=1)


@pytest.fixture(scope="module")
def full(snapstream: Path) -> SnapexportLM:
    return SnapexportLM(build=snapstream, baseline=True, threads=1)


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    return model.eval()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run the tasks in: their data, and a cache of its own for `datasets`."""
    rows = [document(SEED + number) for number in range(DOCUMENTS)]
    (tmp_path / "vault.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def document(seed: int) -> dict[str, Any]:
    """A prompt, its answer, and three wrong ones whose later words are other entries'."""
    prompt = make_prompt(seed, TOKENS)
    lines = [line.partition(":") for line in prompt.text.splitlines()[:-2]]
    others = [values.split() for key, colon, values in lines if colon and key != prompt.key]
    rng = random.Random(seed)
    first = prompt.answer.split()[0]
    wrong = [" " + " ".join([first, *values[1:]]) for values in rng.sample(others, 3)]
    choices = [*wrong, prompt.answer]
    rng.shuffle(choices)
    label = choices.index(prompt.answer)
    return {"text": prompt.text, "answer": prompt.answer, "choices": choices, "label": label}


def run(directory: Path) -> dict[str, float]:
    register()
    results = lm_eval.simple_evaluate(
        model="snapexport",
        model_args={"build": str(directory), "threads": 1},
        tasks=["vault_write", "vault_choose"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
    )
    assert results is not None
    assert results["config"]["snapexport"]["geometry"]["L_max"] == SIZES["L_max"]
    return {
        "write": results["results"]["vault_write"]["exact_match,none"],
        "choose": results["results"]["vault_choose"]["acc,none"],
    }


def instances(kind: str, *arguments: Any) -> list[Instance]:
    return [Instance(kind, {}, one, index) for index, one in enumerate(arguments)]


def loglikelihood(lm: SnapexportLM, context: str, continuation: str) -> tuple[float, bool]:
    requests = instances("loglikelihood", (context, continuation))
    (result,) = lm.loglikelihood(requests, disable_tqdm=True)
    return result


def expected(model: torch.nn.Module, prompt: list[int], rest: list[int]) -> tuple[float, bool]:
    """The same from transformers: one pass over everything."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + rest])).logits[0, len(prompt) - 1 : -1]
    picked = logits.log_softmax(-1)[torch.arange(len(rest)), rest]
    return picked.sum().item(), logits.argmax(-1).tolist() == rest


def test_harness_scores_show_what_a_cache_retains(
    snapstream: Path, streaming: Path, data: Path
) -> None:
    remembered, forgotten = run(snapstream), run(streaming)
    assert min(remembered.values()) >= 0.9, remembered
    assert max(forgotten.values()) <= 0.6, forgotten


@pytest.mark.parametrize(
    ("context", "continuation"),
    [
        (make_prompt(SEED, TOKENS).text, make_prompt(SEED, TOKENS).answer),
        ("Register of the vault.\nThe ", "old clock"),
        ("", "Register of the vault."),
    ],
    ids=["prompt", "space before", "no context"],
)
def test_loglikelihood_of_the_full_cache_is_transformers(
    full: SnapexportLM, reference: torch.nn.Module, context: str, continuation: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    prompt = tokenizer(context.rstrip(" ")).input_ids
    whole = tokenizer(context + continuation).input_ids
    assert whole[: len(prompt)] == prompt
    total, is_greedy = expected(reference, prompt, whole[len(prompt) :])
    assert loglikelihood(full, context, continuation) == (pytest.approx(total, abs=1e-3), is_greedy)


def test_loglikelihood_rolling_scores_each_token_once(
    full: SnapexportLM, reference: torch.nn.Module
) -> None:
    """Longer than a window: the second one begins with the token before its first."""
    text = make_prompt(SEED, 600).text
    ids = AutoTokenizer.from_pretrained(CHECKPOINT)(text).input_ids
    window = SIZES["L_max"] - 1
    first, _ = expected(reference, ids[:1], ids[1 : window + 1])
    rest = ids[window + 1 :]
    before = ids[len(ids) - window - 1 : -len(rest)]
    second, _ = expected(reference, before, rest)
    (total,) = full.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)), True)
    assert total == pytest.approx(first + second, rel=1e-6)


def test_loglikelihood_shows_the_cost_of_compression_after_the_first_token(
    compressed: SnapexportLM, full: SnapexportLM, streaming: Path
) -> None:
    prompt = make_prompt(SEED + 1, TOKENS, depth=0.2)
    first, _, rest = prompt.answer[1:].partition(" ")
    small = SnapexportLM(build=streaming, threads=1)
    one = [loglikelihood(lm, prompt.text, " " + first)[0] for lm in (compressed, full, small)]
    assert one == pytest.approx([one[1]] * 3, abs=1e-4)
    snap, whole, ring = (
        loglikelihood(lm, prompt.text, f" {first} {rest}")[0] for lm in (compressed, full, small)
    )
    assert snap > whole - 0.5
    assert ring < whole - 3


def test_generate_until_keeps_the_order_of_the_requests(compressed: SnapexportLM) -> None:
    """Different lengths end at different times. The text is that of `generate`."""
    texts = [make_prompt(SEED + seed, 64 + 40 * seed).text for seed in range(5)]
    lengths = [9, 1, 5, 2, 7]
    arguments = [{"until": [], "max_gen_toks": length} for length in lengths]
    requests = instances("generate_until", *zip(texts, arguments, strict=True))
    answers = compressed.generate_until(requests, disable_tqdm=True)
    params = [SamplingParams(max_tokens=length) for length in lengths]
    assert answers == [done.text for done in compressed._llm.generate(texts, params)]


class Remembers:
    def __init__(self) -> None:
        self.partial: dict[str, list[tuple[Any, Any]]] = {}

    def add_partial(self, kind: str, request: Any, result: Any) -> None:
        self.partial.setdefault(kind, []).append((request, result))


def test_results_go_to_the_harness_cache(snapstream: Path) -> None:
    lm = SnapexportLM(build=snapstream, threads=1)
    lm.set_cache_hook(memory := Remembers())
    generate = ("The old", {"until": ["\n"], "max_gen_toks": 3})
    (text,) = lm.generate_until(instances("generate_until", generate), True)
    scored = loglikelihood(lm, "The old", " clock")
    (total,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", ("The old",)), True)
    assert memory.partial == {
        "generate_until": [(generate, text)],
        "loglikelihood": [(("The old", " clock"), scored)],
        "loglikelihood_rolling": [(("The old",), total)],
    }


def test_long_prompts_are_cut_from_the_left_with_one_warning(
    full: SnapexportLM, reference: torch.nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    long, short = make_prompt(SEED, 600), make_prompt(SEED, 100)
    requests = instances("loglikelihood", *[(one.text, one.answer) for one in (long, short, long)])
    with caplog.at_level(logging.WARNING):
        results = full.loglikelihood(requests, disable_tqdm=True)
    (warning,) = [one.getMessage() for one in caplog.records if "cut" in one.getMessage()]
    assert warning.startswith("2 of 3 prompts") and "at most 60" in warning
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    rest = tokenizer(long.answer, add_special_tokens=False).input_ids
    prompt = tokenizer(long.text).input_ids[-(SIZES["L_max"] - len(rest)) :]
    assert len(rest) == 4
    assert results[0] == (
        pytest.approx(expected(reference, prompt, rest)[0], abs=1e-3),
        expected(reference, prompt, rest)[1],
    )


def test_a_compressed_build_generates_past_its_longest_prompt(
    compressed: SnapexportLM, caplog: pytest.LogCaptureFixture
) -> None:
    text = make_prompt(SEED, SIZES["L_max"]).text
    arguments = {"until": [], "max_gen_toks": 20}
    (answer,) = compressed.generate_until(instances("generate_until", (text, arguments)), True)
    assert len(compressed.tok_encode(answer, add_special_tokens=False)) >= 4
    assert not caplog.records


def test_a_length_that_leaves_no_prompt_is_refused(full: SnapexportLM) -> None:
    requests = instances("generate_until", ("The", {"max_gen_toks": SIZES["L_max"]}))
    with pytest.raises(UserError, match="544 tokens after the prompt do not fit"):
        full.generate_until(requests, True)


def test_a_prompt_has_exactly_one_bos(compressed: SnapexportLM) -> None:
    bos = compressed.prefix_token_id
    plain = compressed.tok_encode("The old", add_special_tokens=False)
    assert bos not in plain
    assert compressed.tok_encode("The old") == [bos, *plain]
    assert compressed.tok_encode("<s>The old") == [bos, *plain]
    assert compressed.tok_encode("<s>The old", add_special_tokens=False) == [bos, *plain]
    assert compressed.tok_decode(compressed.tok_encode("The old")) == "The old"
    assert compressed.eot_token_id == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "no build.*build=DIR"),
        ({"build": "/nowhere"}, "not a build directory"),
        ({"build": "BUILD", "baseline": True}, "no baseline graphs.*--baseline"),
        ({"build": "BUILD", "baseline": "yes"}, "baseline=yes.*must be True or False"),
        ({"build": "BUILD", "threads": "two"}, "threads=two.*whole number"),
        ({"build": "BUILD", "pretrained": "x"}, "unknown names: pretrained"),
        ({"build": "BUILD", "batch_size": 8}, "batch_size 8.*batch, which is 3"),
    ],
)
def test_wrong_model_args_are_refused(
    streaming: Path, arguments: dict[str, Any], says: str
) -> None:
    if arguments.get("build") == "BUILD":
        arguments = arguments | {"build": str(streaming)}
    with pytest.raises(UserError, match=says):
        SnapexportLM.create_from_arg_obj(arguments, {"batch_size": None, "device": None})


TEMPLATES = {
    "bos": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    "blocks": """{%- for m in messages %}
    {% if m.role == 'system' %}
        {% continue %}
    {% endif %}
    {{- '[' + m.role + '] ' + m.content | tojson + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant] ' }}
{%- endif %}""",
}


@pytest.fixture(params=sorted(TEMPLATES))
def chatting(request: pytest.FixtureRequest, streaming: Path, tmp_path: Path) -> Iterator[Path]:
    """A build with a chat template: one in tokenizer_config.json, one in a file of its own."""
    shutil.copytree(streaming, tmp_path, dirs_exist_ok=True)
    if request.param == "blocks":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATES["blocks"])
    else:
        config = json.loads((streaming / "tokenizer_config.json").read_text())
        (tmp_path / "tokenizer_config.json").unlink()
        config |= {"chat_template": TEMPLATES["bos"]}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    yield tmp_path


def test_chat_templates_render_as_in_transformers(chatting: Path) -> None:
    lm, tokenizer = SnapexportLM(build=chatting, threads=1), AutoTokenizer.from_pretrained(chatting)
    chat = [
        {"role": "system", "content": "Be <brief>."},
        {"role": "user", "content": " What is 'kept'? é "},
    ]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert lm.apply_chat_template(chat) == text
    assert lm.tok_encode(text) == tokenizer(text, add_special_tokens="<s>" not in text).input_ids
    begun = [*chat, {"role": "assistant", "content": "The answer is"}]
    text = tokenizer.apply_chat_template(begun, tokenize=False, continue_final_message=True)
    assert lm.apply_chat_template(begun, add_generation_prompt=False) == text
    assert lm.chat_template(True) == tokenizer.chat_template
    with pytest.raises(UserError, match="names 'tools', but a build has one template"):
        lm.chat_template("tools")
    assert lm.tokenizer_name.endswith(chatting.name)


def test_chat_template_errors_name_the_harness_flags(
    compressed: SnapexportLM, chatting: Path
) -> None:
    with pytest.raises(UserError, match="no chat template"):
        compressed.apply_chat_template([{"role": "user", "content": "a"}])
    chat = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "Well"}]
    (chatting / "chat_template.jinja").write_text("{{ raise_exception('no system here') }}")
    with pytest.raises(UserError, match="no system here"):
        SnapexportLM(build=chatting, threads=1).apply_chat_template(chat)
    (chatting / "chat_template.jinja").write_text("{{ messages[-1].content | upper }}")
    with pytest.raises(UserError, match="does not show the last message as it is: 'Well'"):
        SnapexportLM(build=chatting, threads=1).apply_chat_template(
            chat, add_generation_prompt=False
        )


QUICKLY = """
import functools, runpy
from lm_eval.tasks import TaskManager
TaskManager.__init__ = functools.partialmethod(TaskManager.__init__, include_defaults=False)
runpy.run_module("tools.studies.lm_eval", run_name="__main__", alter_sys=True)
"""
"""The harness' command without lm_eval's own tasks: to read them takes 15 s."""


def command(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """lm_eval's command line with our model, in a process that may not go to the network."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(data / "home")}
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-c", QUICKLY, "--model", "snapexport", *arguments]
    return subprocess.run(
        line, capture_output=True, text=True, cwd=data, env=os.environ | offline | paths
    )


def test_lm_eval_command_line_runs_a_task(snapstream: Path, data: Path) -> None:
    done = command(
        data,
        *f"--model_args build={snapstream},baseline=True,threads=1 --tasks vault_write".split(),
        *f"--include_path {TASKS} --limit 2 --output_path {data / 'results.json'}".split(),
    )
    assert done.returncode == 0, done.stderr
    assert "|vault_write|" in done.stdout and "|exact_match|" in done.stdout
    (written,) = data.glob("results*.json")
    results = json.loads(written.read_text())
    assert results["results"]["vault_write"]["exact_match,none"] == 1.0
    assert results["config"]["snapexport"]["baseline"] is True


def test_lm_eval_command_line_prints_errors_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = {"model": "snapexport", "model_args": f"build={tmp_path}", "tasks": ["any"]}
    monkeypatch.setattr(
        "lm_eval.__main__.cli_evaluate", lambda: lm_eval.simple_evaluate(**arguments)
    )
    assert main() == 2
    assert f"error: {tmp_path} is not a build directory" in (error := capsys.readouterr().err)
    assert "\n\nhint: make one with" in error


def test_the_harness_model_loads_neither_torch_nor_transformers(snapstream: Path) -> None:
    script = f"""
import sys
from lm_eval.api.instance import Instance
from tools.studies.lm_eval.model import SnapexportLM
lm = SnapexportLM(build={str(snapstream)!r}, threads=1)
lm.loglikelihood([Instance("loglikelihood", {{}}, ("The old", " clock"), 0)])
print(*[name for name in ("torch", "transformers", "onnx") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
