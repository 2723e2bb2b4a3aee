"""`inspect --html`: one file that holds the prompt as it was and what each KV head kept of it."""

import base64
import json
import os
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from snapexport.cli.app import main
from snapexport.cli.flags import whole_file
from snapexport.contract.build_directory import Build
from snapexport.contract.geometry import CacheGeometry
from snapexport.contract.records import GeometryRecord
from snapexport.contract.slots import LayerGeometry
from snapexport.errors import UserError
from snapexport.measure.page import TokenizedPrompt, kept_bits, layer_regions, pack, render
from snapexport.vault import CHECKPOINT
from tests.builds import build
from tests.refused import refused
from tests.runtime.tokenizers_for_tests import byte_level

NASTY = (
    "</script><script>alert(1)</script><!-- {{style}} \\u003c & \"double\" 'single'\r\n"
    "nul \0 escape \x1b c1 \x85 tab \t bom \ufeff separator \u2028 emoji 😀 é 漢字\n\n</title>"
)
GEOMETRY = GeometryRecord(
    "snapstream", 512, 2, L_sink=(4, 0), L_recent=(12, 20), K=(6, 0), L_obs=4
).geometry()
VOID = {"meta"}


class Reader(HTMLParser):
    """Reads a page into its elements' texts; elements have to close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data

    @property
    def data(self) -> dict[str, Any]:
        """The data that the page's script reads."""
        found: dict[str, Any] = json.loads(self.texts["script"][0])
        return found


def prompt_of(text: str) -> TokenizedPrompt:
    return TokenizedPrompt.of(text, byte_level().encode(text))


def kept_of(length: int) -> list[NDArray[np.int64]]:
    """Layer 0: two heads that agree on one position, and leave places unused. Layer 1: no vote."""
    rows = [[4, 9, length - 13, -1, -1, -1], [5, 9, 10, 11, 12, 13]]
    return [np.array(rows), np.empty((2, 0), np.int64)]


def page_of(text: str, title: str = "a.build") -> str:
    prompt = prompt_of(text)
    return render(title, prompt, GEOMETRY, kept_of(len(prompt.offsets)))


def unpacked(text: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def kept_in(data: dict[str, Any]) -> list[list[list[int]]]:
    """The positions that each layer and head of a page's data kept."""
    bits = unpacked(data["bits"], "u1").reshape(len(data["layers"]), data["heads"], -1)
    held = np.unpackbits(bits, axis=-1, bitorder="little")
    return [[np.flatnonzero(head).tolist() for head in layer] for layer in held]


def test_the_page_holds_the_prompt_unchanged() -> None:
    assert Reader(page_of(NASTY)).data["text"] == NASTY


def test_the_page_escapes_prompt_and_name() -> None:
    plain, nasty = Reader(page_of("x" * 200)), Reader(page_of(NASTY, "</title><b a='\"&.build"))
    assert nasty.attributes == plain.attributes
    assert {tag: len(texts) for tag, texts in nasty.texts.items()} == {
        tag: len(texts) for tag, texts in plain.texts.items()
    }
    assert nasty.texts["script"][1:] == plain.texts["script"][1:]
    assert nasty.texts["style"] == plain.texts["style"]
    assert nasty.texts["title"] == ["What </title><b a='\"&.build kept of a prompt"]


def test_the_page_needs_no_network() -> None:
    page = page_of("x" * 200)
    reader = Reader(page)
    names = {name for name, _ in reader.attributes}
    assert not names & {"src", "href", "srcset", "action", "data", "background", "poster"}
    assert not any(word in page for word in ("url(", "@import", "fetch(", "XMLHttpRequest"))
    assert page.replace("http://www.w3.org/2000/svg", "").count("://") == 0  # a name, no address
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert ("content", policy) in reader.attributes


def test_the_page_has_the_kept_positions_of_each_head() -> None:
    length = len(prompt_of(NASTY).offsets)
    data = Reader(page_of(NASTY)).data
    assert data["tokens"] == length
    assert kept_in(data) == [[[4, 9, length - 13], [5, 9, 10, 11, 12, 13]], [[], []]]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 131])
def test_kept_bits_have_one_bit_a_position(length: int) -> None:
    for position in range(length):
        bits = kept_bits([np.array([[position, -1]])], length)
        assert bits.shape == (1, 1, -(-length // 8))
        (found,) = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        assert found == position


def test_page_arrays_are_packed_little_endian() -> None:
    numbers = np.array([[1, 70_000], [2**32 - 1, 0]], ">u4")
    assert unpacked(pack(numbers), "<u4").tolist() == numbers.ravel().tolist()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 19, 20, 100])
@pytest.mark.parametrize("place", [LayerGeometry(4, 12, 3), LayerGeometry(0, 12, 0)])
def test_page_regions_equal_the_geometry(place: LayerGeometry, length: int) -> None:
    regions = layer_regions(place, length)
    held = [*range(regions["sinks"]), *range(regions["ring"], length)]
    assert held == sorted(set(place.source_positions(length, [-1] * place.K)) - {-1})


@pytest.mark.parametrize(
    ("text", "offsets", "spans"),
    [
        ("ab", [(0, 0), (0, 1), (1, 2)], [[0, 0, 1], [0, 1, 1], [1, 2, 1]]),
        ("a b", [(0, 1), (2, 3)], [[0, 1, 1], [2, 3, 1]]),
        ("😀b", [(0, 1)] * 4 + [(1, 2)], [[0, 2, 4], [2, 3, 1]]),
        ("😀b", [(0, 1), (0, 2)], [[0, 3, 2]]),
        ("ab", [(0, 2), (0, 0), (1, 2)], [[0, 2, 3]]),
        ("ab", [(0, 2), (0, 0)], [[0, 2, 1], [2, 2, 1]]),
    ],
)
def test_spans_cover_whole_tokens(
    text: str, offsets: list[tuple[int, int]], spans: list[list[int]]
) -> None:
    prompt = TokenizedPrompt(text, tuple(offsets), ("t",) * len(offsets))
    assert prompt.spans().tolist() == spans


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_spans_cover_any_text_exactly_once(text: str) -> None:
    prompt = prompt_of(text)
    starts, ends, tokens = prompt.spans().T
    units = text.encode("utf-16-le")
    assert b"".join(units[2 * a : 2 * b] for a, b in zip(starts, ends, strict=True)) == units
    assert tokens.sum() == len(prompt.offsets)


def test_the_page_names_tokens_without_characters() -> None:
    prompt = TokenizedPrompt("ab", ((0, 0), (0, 2), (0, 0)), ("<s>", "ab", "</s>"))
    page = render("a.build", prompt, CacheGeometry.full(8, 1), [])
    assert Reader(page).data["bare"] == {"0": "<s>", "2": "</s>"}


@pytest.mark.parametrize(
    ("length", "verdict"),
    [
        (12, "All 12 positions are held: nothing was dropped."),
        (100, "A KV head holds 20–22 of 100 positions, on average 21 %."),
    ],
)
def test_the_page_says_how_many_positions_are_held(length: int, verdict: str) -> None:
    prompt = prompt_of("x" * length)
    held = np.arange(6) + 4 if length > 22 else np.full(6, -1)
    kept = [np.tile(held, (2, 1)), np.empty((2, 0), np.int64)]
    assert Reader(render("a", prompt, GEOMETRY, kept)).texts["p"][0] == verdict


def test_the_page_lists_the_facts_of_the_cache() -> None:
    page = Reader(page_of("x" * 100))
    assert dict(zip(page.texts["dt"], page.texts["dd"], strict=True)) == {
        "prompt": "100 tokens",
        "policy": "snapstream",
        "layers × KV heads": "2 × 2",
        "cache slots of a head": "20–22",
        "sinks": "0–4",
        "ring": "12–20",
        "kept by vote": "0–6",
        "voters": "window 4",
        "pool P": "31",
        "vote": "causal, sum-squares, avg, mean",
    }


def test_the_page_of_a_full_cache_says_that_all_is_kept() -> None:
    reader = Reader(render("a", prompt_of("some text"), CacheGeometry.full(64, 2), []))
    assert reader.texts["p"][0].startswith("The cache is the full one: every position is kept")
    assert ("class", "full") in reader.attributes
    assert reader.data["layers"] == []


@pytest.fixture(scope="module")
def vault_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("vault") / "vault.build"
    return build(CHECKPOINT, out, L_max=64, kv_budget=16, batch=1)


PROMPT = "The old key of the vault lies – hidden – behind the door of the house by the sea.\n"


def test_inspect_html_writes_the_page_and_prints_its_size(
    capsys: pytest.CaptureFixture[str], vault_build: Build, tmp_path: Path
) -> None:
    page = tmp_path / "kept.html"
    page.write_text("an older page")
    argv = ["inspect", str(vault_build.directory), "--prompt", PROMPT, "--html", str(page)]
    assert main([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["html"] == {"file": str(page), "bytes": page.stat().st_size}
    data = Reader(page.read_text("utf-8")).data
    assert (data["text"], data["tokens"]) == (PROMPT, report["prompt"]["prompt_tokens"])
    positions = report["prompt"]["topk_positions"]
    assert kept_in(data) == [[[p for p in row if p >= 0] for row in layer] for layer in positions]
    assert any(any(layer) for layer in kept_in(data))
    assert main(argv) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{page}: ")
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    "flags", ["--html kept.html", "--system s", "--no-chat", "--backend onnxruntime"]
)
def test_flags_of_a_prompt_need_one(
    capsys: pytest.CaptureFixture[str], vault_build: Build, flags: str
) -> None:
    words = flags.split()
    printed = refused(capsys, "inspect", vault_build.directory, *words)
    assert f"{words[0]} is for a prompt, but none was given" in printed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/kept.html", "No such file or directory"),
        ("file/kept.html", "Not a directory"),
        (".", "is not a file"),
        ("pipe", "is not a file"),
        ("x" * 250, "File name too long"),
    ],
)
def test_inspect_html_refuses_an_unwritable_path_before_the_work(
    capsys: pytest.CaptureFixture[str],
    vault_build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    message: str,
) -> None:
    monkeypatch.setattr("snapexport.cli.inspect.kept_positions", None)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    argv = "inspect", vault_build.directory, "--prompt", PROMPT, "--html", tmp_path / name
    assert message in refused(capsys, *argv)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "pipe"}


def test_a_refused_prompt_leaves_the_older_page(
    capsys: pytest.CaptureFixture[str], vault_build: Build, tmp_path: Path
) -> None:
    page = tmp_path / "kept.html"
    page.write_text("an older page")
    argv = "inspect", vault_build.directory, "--prompt", PROMPT * 9, "--html", page
    assert "the build takes 64" in refused(capsys, *argv)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an older page"]


def test_a_page_on_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with (
        pytest.raises(UserError, match="No space left"),
        whole_file(tmp_path / "a", "--html") as write,
    ):
        write("text")
    assert list(tmp_path.iterdir()) == []


def test_a_page_reached_by_a_symlink_keeps_the_symlink(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page")
    with whole_file(tmp_path / "link", "--html") as write:
        write("text\r\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page").read_bytes() == b"text\r\n"
