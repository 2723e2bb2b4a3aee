"""Every task makes samples of the length, the depth and the answers that it promises."""

import json
import re
import time
from collections.abc import Callable
from functools import cache
from itertools import islice
from string import ascii_letters, digits

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from snapexport.errors import UserError
from snapexport.measure.eval.haystack import Draws
from snapexport.measure.eval.sample import Sample, most
from snapexport.measure.eval.tasks import TASKS, filler
from snapexport.vault import CHECKPOINT
from snapexport.vault.prompts import FIRST_TRAINING_SEED, make_prompt

TOKENS = 1024
NAMES = list(TASKS)
# How often an answer stands in a context, where it is not once: a variable is copied on.
TWICE = {"passkey": {2}, "vt": {1, 2}}
COUNTED = {"cwe", "fwe"}
"""Tasks whose answers are all over the text, and have no depth."""
# SentencePiece never merges a newline with anything, nor words with one another.
SENTENCEPIECE = {"special_tokens": ["<unk>"], "initial_alphabet": ["\n"]}
LONGEST_LINE = 90
"""Tokens of the vault's tokenizer: a pair of `kv`."""


@cache
def vault_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def _trained(tokenizer: Tokenizer, texts: list[str], **options: object) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@cache
def metaspace() -> Tokenizer:
    """SentencePiece's manner: every text that is encoded gets a space of its own."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _trained(tokenizer, _words(), **SENTENCEPIECE)


@cache
def merging() -> Tokenizer:
    """A metaspace tokenizer that also merges the end of a line with the next line."""
    tokenizer = Tokenizer.from_str(metaspace().to_str())
    return _trained(tokenizer, _everything(), special_tokens=["<unk>"])


@cache
def prepending() -> Tokenizer:
    """Llama 2's manner: the space is the normalizer's, and text is not split before merging."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _trained(tokenizer, _words(), **SENTENCEPIECE)


@cache
def regex_split() -> Tokenizer:
    """Llama 3's and Qwen's manner: digits by threes or less, punctuation with its newlines."""
    pattern = (
        r" ?\p{L}+|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, _everything())


@cache
def words_only() -> Tokenizer:
    """Spells what it was trained on, the vault's register; it has no digit."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [make_prompt(seed, 4096).text for seed in range(2)]
    return _trained(tokenizer, texts, special_tokens=["<unk>"])


def one_unknown() -> Tokenizer:
    """Has no word: any text is one token."""
    return Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))


def _everything() -> list[str]:
    return [task.excerpt() for task in TASKS.values()] + [digits + ascii_letters]


def _words() -> list[str]:
    return [word for text in _everything() for word in text.split()]


def sample(name: str, seed: int = 1, tokens: int = TOKENS, **options: float) -> Sample:
    return TASKS[name].sample(vault_tokenizer(), seed, tokens, **options)  # type: ignore[arg-type]


def prompt_tokens(sample: Sample) -> int:
    return len(sample.context_ids) + len(sample.question_ids)


def needle_of(sample: Sample) -> str:
    """The line of the context in which an answer stands first."""
    return next(
        line for line in sample.context.splitlines() if any(a in line for a in sample.answers)
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(400, 1500),
    depth=st.none() | st.floats(0, 1),
)
def test_a_sample_has_its_length_depth_and_answers(
    name: str, seed: int, tokens: int, depth: float | None
) -> None:
    one = TASKS[name].sample(vault_tokenizer(), seed, tokens, depth)
    assert one == TASKS[name].sample(vault_tokenizer(), seed, tokens, depth)
    assert tokens - LONGEST_LINE < prompt_tokens(one) <= tokens
    if name not in COUNTED:
        assert all(one.context.count(a) in TWICE.get(name, {1}) for a in one.answers)
    assert len(set(one.answers)) == len(one.answers)
    assert all(one.question.count(answer) == 0 for answer in one.answers)
    if name not in COUNTED:
        start = one.context.index(needle_of(one))
        assert one.depth == pytest.approx(start / len(one.context))
    assert one.context.endswith("\n")


@pytest.mark.parametrize("name", NAMES)
def test_sample_ids_equal_those_of_the_whole_text(name: str) -> None:
    one, tokenizer = sample(name), vault_tokenizer()
    assert one.context_ids[0] == tokenizer.token_to_id("<s>")
    assert list(one.context_ids + one.question_ids + one.reference_ids) == (
        tokenizer.encode(one.context + one.question + one.reference).ids
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_scores_1_and_another_samples_0(name: str) -> None:
    one, other = sample(name, seed=1), sample(name, seed=2)
    assert one.score(f"{one.reference}.".lower()) == 1
    assert one.score_first(one.reference_ids)
    assert one.score_rest((*one.reference_ids, 5, 6))
    assert one.score(other.reference) == one.score("") == 0
    assert not one.score_rest(other.reference_ids)
    assert not one.score_rest(one.reference_ids[:-1])
    assert not one.score_first(())
    assert one.max_tokens > len(one.reference_ids)
    assert not any(stop in one.reference for stop in one.stop)


def test_the_first_token_and_the_rest_are_scored_separately() -> None:
    one = sample("niah_single")
    first, *rest = one.reference_ids
    assert one.score_rest((first + 1, *rest)) and not one.score_first((first + 1, *rest))
    assert one.score_first((first,)) and not one.score_rest((first,))
    assert not one.score_rest((first, *rest[:-1], rest[-1] + 1))


def test_a_part_of_the_answers_scores_its_share() -> None:
    one = sample("niah_multivalue")
    assert one.score(f"{one.answers[2]} and {one.answers[0]}") == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_seeds_give_different_samples(name: str) -> None:
    made = [sample(name, seed) for seed in range(4)]
    assert len({one.reference for one in made}) == len({one.context for one in made}) == 4


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COUNTED])
@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_needle_is_at_its_depth(name: str, depth: float) -> None:
    tokens = 8192
    one = sample(name, tokens=tokens, depth=depth)
    before = one.context[: one.context.index(needle_of(one))]
    share = len(vault_tokenizer().encode(before).ids) / len(one.context_ids)
    # The vault goes by the order of its entries, and there are some 250 of them.
    assert share == pytest.approx(depth, abs=0.08 if name == "vault" else 0.03)


def test_needles_without_a_depth_are_anywhere() -> None:
    depths = [sample("niah_single", seed).depth for seed in range(40)]
    assert min(depths) < 0.2 and max(depths) > 0.8


@pytest.mark.parametrize("name", NAMES)
def test_a_too_short_length_is_refused_with_the_shortest_possible(name: str) -> None:
    with pytest.raises(UserError, match="does not fit into 20 tokens") as error:
        sample(name, tokens=20)
    (least,) = map(int, re.findall(r"\d+", error.value.hint))
    assert prompt_tokens(sample(name, tokens=least)) == least
    with pytest.raises(UserError):
        sample(name, tokens=least - 1)


@pytest.mark.parametrize("depth", [-0.1, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["niah_single", "vault", "long_answer"])
def test_a_depth_outside_0_to_1_is_refused(name: str, depth: float) -> None:
    with pytest.raises(UserError, match="is not a share"):
        sample(name, depth=depth)


def test_seeds_of_the_vaults_training_are_refused() -> None:
    with pytest.raises(UserError, match="trained"):
        sample("vault", seed=FIRST_TRAINING_SEED)


def test_a_vault_sample_equals_make_prompt() -> None:
    one, prompt = sample("vault", tokens=777, depth=0.3), make_prompt(1, 777, depth=0.3)
    assert one.context + one.question == prompt.text
    assert one.reference == prompt.answer
    assert prompt_tokens(one) == 777


@pytest.mark.parametrize("answer_tokens", [1, 100, 700])
def test_long_answers_are_long_enough_and_no_longer(answer_tokens: int) -> None:
    one = sample("long_answer", tokens=8192, answer_tokens=answer_tokens)
    assert len(one.reference_ids) >= answer_tokens
    # A number, its comma and its space are 9 tokens here; four numbers are the fewest.
    assert len(one.reference_ids) < max(answer_tokens + 9, 40)
    assert prompt_tokens(one) <= 8192


def test_multiquery_answers_have_the_order_of_the_question() -> None:
    one = sample("niah_multiquery")
    keys = re.findall(r"\w+-\w+-\w+", one.question.splitlines()[1])
    for key, number in zip(keys, one.answers, strict=True):
        assert f"for {key} is {number}.\n" in one.context


def test_variable_tracking_answers_all_hold_the_value() -> None:
    one = sample("vt")
    held: dict[str, str] = {}
    for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", one.context):
        held[name] = held.get(source, source)
    assert tuple(held) == one.answers
    assert set(held.values()) == set(re.findall(r"\d{5}", one.question))


def test_the_kv_context_is_json_and_holds_the_answer() -> None:
    one = sample("kv", tokens=4096)
    pairs = json.loads(one.context[one.context.index("{") :])
    key = one.question.splitlines()[1].strip('":')
    assert pairs[key] == one.answers[0]
    assert len(set(pairs) | set(pairs.values())) == 2 * len(pairs) == 2 * one.context.count(": ")


@pytest.mark.parametrize("name", ["niah_multikey", "lines"])
def test_no_key_or_number_of_a_haystack_comes_twice(name: str) -> None:
    context = sample(name, tokens=8192).context
    for pattern in (r"\w+-\w+-\w+", r"\d{6,}"):
        found = re.findall(pattern, context)
        assert len(found) == len(set(found)) > 100


def test_no_drawn_key_is_part_of_another() -> None:
    draws = Draws("any", 0)
    keys = [draws.key() for _ in range(1500)]
    text = "\n".join(keys)
    assert all(text.count(key) == 1 for key in keys)


@pytest.mark.parametrize("name", NAMES)
def test_filler_is_noise_of_the_requested_length(name: str) -> None:
    tokenizer, one = vault_tokenizer(), sample(name)
    for tokens in (0, 1, 300):
        ids = filler(tokenizer, TASKS[name], 1, tokens)
        text = tokenizer.decode(list(ids))
        assert tokens <= len(ids) < tokens + LONGEST_LINE
        assert ids == filler(tokenizer, TASKS[name], 1, tokens)
        assert not text or text.endswith("\n")
        assert name in COUNTED or not any(answer in text for answer in one.answers)
        assert not any(key in text for key in re.findall(r"\w+-\w+-\w+", one.question))
    lines = text.splitlines(keepends=True)
    assert lines == list(islice(TASKS[name].noise(1), len(lines)))


@pytest.mark.parametrize("make", [metaspace, prepending, regex_split])
@pytest.mark.parametrize("name", NAMES)
def test_other_kinds_of_tokenizers_spell_every_task(
    name: str, make: Callable[[], Tokenizer]
) -> None:
    tokenizer = make()
    one = TASKS[name].sample(tokenizer, 3, TOKENS, 0.5, answer_tokens=60)
    assert 0.85 * TOKENS < prompt_tokens(one) <= TOKENS
    whole = tokenizer.encode(one.context + one.question + one.reference).ids
    assert list(one.context_ids + one.question_ids + one.reference_ids) == whole


@pytest.mark.parametrize("make", [vault_tokenizer, metaspace, prepending, regex_split])
@pytest.mark.parametrize(
    "name", ["niah_single", "niah_multikey", "kv", "passkey", "lines", "vault"]
)
def test_the_reference_ids_occur_in_the_context_ids(
    name: str, make: Callable[[], Tokenizer]
) -> None:
    one = TASKS[name].sample(make(), 3, TOKENS)
    context, size = one.context_ids, len(one.reference_ids)
    windows = {context[i : i + size] for i in range(len(context) - size + 1)}
    assert one.reference_ids in windows


@pytest.mark.parametrize("name", NAMES)
def test_sample_parts_that_a_tokenizer_would_merge_are_encoded_separately(name: str) -> None:
    one = TASKS[name].sample(merging(), 3, TOKENS, 0.5)
    assert 0.85 * TOKENS < prompt_tokens(one) <= TOKENS
    for ids, text in ((one.question_ids, one.question), (one.reference_ids, one.reference)):
        assert merging().decode(list(ids)).strip() == text.strip()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"vault"}))
def test_an_unspellable_task_is_refused_with_the_spellable_ones(name: str) -> None:
    with pytest.raises(UserError, match=f"can't spell the task '{name}'") as error:
        TASKS[name].sample(words_only(), 1, TOKENS)
    assert error.value.hint == "tasks it can spell: vault"
    assert prompt_tokens(TASKS["vault"].sample(words_only(), 1, TOKENS)) <= TOKENS


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_that_spells_no_task_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="can't spell") as error:
        TASKS[name].sample(one_unknown(), 1, TOKENS, answer_tokens=9)
    assert "none" in error.value.hint
    with pytest.raises(UserError, match="can't spell"):
        filler(one_unknown(), TASKS[name], 1, 100)


def test_a_sample_has_special_tokens_only_before_its_context() -> None:
    tokenizer = Tokenizer.from_str(
        vault_tokenizer()
        .to_str()
        .replace(
            '{"Sequence":{"id":"A","type_id":0}}]',
            '{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<s>","type_id":0}}]',
            1,
        )
    )
    assert tokenizer.encode("a").ids[-1] == tokenizer.token_to_id("<s>")
    assert TASKS["niah_single"].sample(tokenizer, 1, TOKENS) == sample("niah_single")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["niah_single", "kv", "vault"])
def test_a_sample_of_131072_tokens_takes_under_20_seconds(name: str) -> None:
    start = time.process_time()
    one = sample(name, tokens=131_072, depth=0.5)
    assert 131_072 - LONGEST_LINE < prompt_tokens(one) <= 131_072
    assert one.depth == pytest.approx(0.5, abs=0.05)
    assert time.process_time() - start < 20


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(0, 300))
def test_most_finds_the_largest_fitting_count(costs: list[int], limit: int) -> None:
    def count(n: int) -> int:
        return sum(costs[i % len(costs)] for i in range(n))

    for guess in (1, 7, 500):
        n = most(count, limit, guess)
        assert count(n) <= limit < count(n + 1)
