"""Words of `ask` that are files, and the text of files."""

import io
import sys
from pathlib import Path

import pytest

from snapexport.cli.documents import read_documents, split_words
from snapexport.errors import UserError

PAGES = "The vault opens at noon.", "Ada has the key."


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("report.txt", "two words", "Makefile"):
        Path(name).write_text("text\n")
    Path("notes").mkdir()
    return tmp_path


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page."""
    count = len(pages)
    kids = " ".join(f"{3 + 2 * page} 0 R" for page in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
    ]
    font = "<< /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    for page, text in enumerate(pages):
        content = f"BT /F 12 Tf 50 700 Td ({text}) Tj ET" if text else ""
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources {font} "
            f"/Contents {4 + 2 * page} 0 R >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    out, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{one}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    return (
        out
        + (
            f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
            f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
        ).encode()
    )


@pytest.mark.parametrize(
    ("words", "files", "question"),
    [
        (["report.txt"], 1, None),
        (["report.txt", "Why?"], 1, "Why?"),
        (["report.txt", "Who has it?"], 1, "Who has it?"),
        (["report.txt", "Summarize."], 1, "Summarize."),
        (["report.txt", "What is in Makefile"], 1, "What is in Makefile"),
        (["report.txt", "Makefile"], 2, None),
        (["two words"], 1, None),
        (["report.txt", "two words"], 2, None),
        (["-", "Why?"], 1, "Why?"),
        (["report.txt", "-"], 2, None),
    ],
)
def test_the_last_word_that_is_not_a_file_is_the_question(
    words: list[str], files: int, question: str | None
) -> None:
    assert split_words(words, None) == (words[:files], question)


@pytest.mark.parametrize(
    ("words", "question", "message", "hint"),
    [
        (["reprot.txt"], None, "there is no file reprot.txt", "did you mean report.txt? "),
        (["report.txt", "raport.txt"], None, "no file raport.txt", "did you mean report.txt? "),
        (["report.txt", "makefil"], None, "no file makefil", "did you mean Makefile? "),
        (["report.txt", "a/b"], None, "there is no file a/b", "a question goes last"),
        (["Who has it?"], None, "there is no file Who has it?", "name the files first"),
        (["Who?", "report.txt"], None, "there is no file Who?", "a question goes last"),
        (["report.txt", "Who?"], "Who?", "there is no file Who?", "a question goes last"),
        (["x" * 5000], None, "there is no file x", "a question goes last"),
        (["report.txt"], " ", "the question is empty", "leave it out"),
        (["notes", "Who?"], None, "notes is a folder", "name its files"),
        (["-", "-"], None, "standard input is named twice", "give - once"),
    ],
)
def test_what_is_neither_a_file_nor_a_question_is_refused(
    words: list[str], question: str | None, message: str, hint: str
) -> None:
    with pytest.raises(UserError) as raised:
        split_words(words, question)
    assert message in raised.value.message and hint in raised.value.hint


def test_pages_of_a_pdf_are_text(folder: Path) -> None:
    pytest.importorskip("pypdf")
    Path("report").write_bytes(pdf(*PAGES))  # whatever its name is
    assert read_documents(["report"]) == "\n\n".join(PAGES)
    assert read_documents(["report", "report.txt"]).startswith(f"File: report\n\n{PAGES[0]}")


def test_a_pdf_that_has_no_text_is_refused(folder: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    whole = pdf(*PAGES)
    locked, out = pypdf.PdfWriter(clone_from=io.BytesIO(whole)), io.BytesIO()
    locked.encrypt("secret", algorithm="RC4-128")
    locked.write(out)
    for content, says in (
        (pdf(""), "has no text"),
        (whole[:200], "can't be read as a PDF"),
        (out.getvalue(), "is protected by a password"),
    ):
        Path("x.pdf").write_bytes(content)
        with pytest.raises(UserError, match=says) as raised:
            read_documents(["x.pdf"])
        assert raised.value.message.startswith("x.pdf ")


def test_a_pdf_needs_an_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    Path("x.pdf").write_bytes(pdf(*PAGES))
    with pytest.raises(UserError) as raised:
        read_documents(["x.pdf"])
    assert "snapexport[pdf]" in raised.value.hint


@pytest.mark.parametrize(
    ("content", "says"), [(b"\xff\x00", "is not UTF-8"), (b" \n", "has no text"), (b"", "no text")]
)
def test_a_file_that_is_not_text_is_refused_by_name(content: bytes, says: str) -> None:
    Path("report.txt").write_bytes(content)
    with pytest.raises(UserError, match=f"report.txt .*{says}"):
        read_documents(["report.txt"])
