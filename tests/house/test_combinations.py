"""The page of what goes with what, and the table that it is printed from."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from snapexport.builder.engines.options import EngineOptions
from snapexport.builder.options import BuildOptions, graph_fields
from snapexport.contract.build_directory import Build
from snapexport.contract.exclusions import broken, build_rules, require_compatible, rules, run_rules
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.rule import Facts, Rule
from snapexport.errors import UserError
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.config import LLMConfig
from tests.oracle import cases
from tests.oracle.cases import Case
from tools import combinations

OF_BUILD = {*graph_fields(), *(found.name for found in fields(BuildOptions))}
OF_LLM = {found.name for found in fields(LLMConfig)}
OF_EXECUTOR = {"prompt_cache", "prefill"}
OF_A_BUILD = {"tensor_parallel", "target", "compresses", "graphs", "has_baseline"}
OF_A_BUILD |= {"dtype", "held_in", "has_engines"}


def name(rule: Rule) -> str:
    return f"{rule.choice.text} {rule.other.joined} {rule.other.text}"


def facts_of(rule: Rule) -> Facts:
    return {**rule.choice.example, **rule.other.example}


def test_page_of_combinations_is_current() -> None:
    assert combinations.PAGE.read_text() == combinations.render(), (
        "run `python tools/combinations.py`"
    )


@pytest.mark.parametrize("rule", [rule for rule in rules() if rule.other.example], ids=name)
def test_every_rule_is_broken_by_its_own_examples(rule: Rule) -> None:
    facts = facts_of(rule)
    if rule.choice.example.keys() & rule.other.example.keys():
        return  # the two are values of one flag for the page alone
    assert rule in broken(facts)
    with pytest.raises(UserError, match="is not supported"):
        require_compatible(facts)
    assert not rule.is_broken(rule.choice.example) and not rule.is_broken(rule.other.example)


@pytest.mark.parametrize(
    "rule", [rule for rule in build_rules() if facts_of(rule).keys() <= OF_BUILD], ids=name
)
def test_options_of_a_build_refuse_what_a_rule_excludes(rule: Rule, tmp_path: Path) -> None:
    facts = facts_of(rule)
    if not rule.is_broken(facts):
        return  # two values of one flag, or a target that is missing
    if facts.get("weights") == "fp8":
        facts = {"target": "tensorrt", **facts}  # one that has them
    with pytest.raises(UserError) as refused:
        BuildOptions.of(model="model", out=tmp_path, L_max=64, **facts)
    assert refused.value.message in {rule.error(facts).message for rule in broken(facts)}


def build_with(facts: Facts) -> Build:
    """A build of that kind, by its manifest."""
    made = Build.open(cases.built(Case(batch=2)).directory)
    of_manifest = "tensor_parallel", "target", "dtype"
    update: dict[str, Any] = {key: facts[key] for key in of_manifest if key in facts}
    if "held_in" in facts:
        changed = {"cache_dtype": facts["held_in"]}
        update["graph_options"] = replace(made.manifest.graph_options, **changed)
    if "compresses" in facts:
        update["geometry"] = CacheGeometry.full(64, made.manifest.geometry.slots.num_layers)
    return Build(made.directory, made.manifest.model_copy(update=update))


def run(facts: Facts) -> None:
    """Give what runs a build the options of the facts."""
    given = {key: value for key, value in facts.items() if key not in OF_A_BUILD}
    if "run_baseline" in given:
        given["baseline"] = given.pop("run_baseline")
    if "library" in given:
        library = given.pop("library")
        file = {key: Path(__file__) for key in ("plugins", "timing_cache") if key in given}
        EngineOptions(**given | file).require_supported(library)
    elif given.keys() <= OF_LLM and given.get("prefill") != "both":
        LLMConfig(**given).open(build_with(facts))
    elif given.keys() <= OF_EXECUTOR:
        open_executor(build_with(facts), **given)
    elif given.keys() == {"command"}:
        build_with(facts).require_run(**given)
    else:
        require_compatible(facts)  # a server's, a chat template's, or flags of genai's build


@pytest.mark.parametrize("rule", run_rules(), ids=name)
def test_what_runs_a_build_refuses_what_a_rule_excludes(rule: Rule) -> None:
    with pytest.raises(UserError) as refused:
        run(facts_of(rule))
    expected = rule.error(facts_of(rule)).message
    assert refused.value.message.replace(__file__, "FILE") == expected


def test_page_refuses_what_a_wider_rule_refuses() -> None:
    """--cache-dtype int8 with --policy full breaks the rule of every --cache-dtype."""
    lines = combinations.render().splitlines()
    for row in ("`--cache-dtype int8`", "`--vote-queries repeat`"):
        line = next(line for line in lines if line.startswith(f"| {row} |"))
        assert re.search(r"`--policy full` \(\d+\)", line)
