"""Clients that are commands: llm, guidellm and lm-eval."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.serving.clients.answers import QUESTION, City
from tests.serving.clients.conftest import MODEL_NAME, Target

SECONDS = 150
TEXTS = ["The capital of France is", "Two and two are"]
CHOICES = [["Paris", "green"], ["four", "Rome"]]


def command(name: str, *arguments: str, cwd: Path) -> str:
    """Its standard output. The command is the environment's own."""
    program = str(Path(sys.executable).with_name(name))
    done = subprocess.run(
        [program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_llm_answers_by_a_schema(target: Target, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    known = {"model_id": "served", "model_name": MODEL_NAME, "api_base": f"{target.url}/v1"}
    known |= {"supports_schema": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([known]))
    schema = json.dumps(City.model_json_schema())
    answer = command("llm", "-m", "served", "--schema", schema, QUESTION, cwd=tmp_path)
    assert City.model_validate_json(answer)


def test_guidellm_measures(target: Target, tmp_path: Path) -> None:
    command(
        *[
            "guidellm",
            "run",
            "--backend",
            f"kind=openai_http,target={target.url},model={MODEL_NAME}",
        ],
        *["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=4"],
        *["--tokenizer", f"kind=hf_auto,model={target.build}"],
        *["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=8"],
        cwd=tmp_path,
    )
    (report,) = tmp_path.glob("benchmarks.json")
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (4, 0)


def test_lm_eval_scores_choices(target: Target, tmp_path: Path) -> None:
    rows = [{"text": text, "choices": c} for text, c in zip(TEXTS, CHOICES, strict=True)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "capitals",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": 0,
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "capitals.yaml").write_text(json.dumps(task))
    model = f"model={MODEL_NAME},base_url={target.url}/v1/completions,tokenizer={target.build}"
    command(
        *["lm-eval", "run", "--model", "local-completions", "--model_args", model],
        *["--tasks", "capitals", "--include_path", str(tmp_path), "--output_path", str(tmp_path)],
        cwd=tmp_path,
    )
    (report,) = tmp_path.rglob("results*.json")
    assert json.loads(report.read_text())["results"]["capitals"]["acc,none"] == 1.0
