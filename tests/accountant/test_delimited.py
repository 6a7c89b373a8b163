"""The strict reader of delimited files: every record exactly, or an error with the line, never fewer records."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.delimited import Delimited, find_delimiter, read_delimited
from accountant.errors import InputError
from accountant.ledger.signing import OwnerKey, fingerprint_columns, fingerprint_csv

KEY = OwnerKey(b"k" * 32)
SECRET = "Zaphod"  # what is in a record never stands in an error


def read(text: str | bytes, **options) -> Delimited:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_delimited(path, **options)


def numbered(*lines: str, count: int = 200) -> str:
    """A table of so many records, in which these lines take the place of those from line 50 on."""
    rows = ["branch,age,repaid", *(f"{SECRET} {i},{i},{i % 2}" for i in range(2, count + 2))]
    rows[49 : 49 + len(lines)] = lines
    return "\n".join(rows) + "\n"


# ── one mistake ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("lines", "where", "found"),
    [
        ((f'"{SECRET},3,1',), "lines 50 to 201", "a quote that is never closed"),
        ((f'{SECRET},3,"1',), "lines 50 to 201", "a quote that is never closed"),
        ((f'{SECRET},"3,1', "b,3,1", 'c,"4",0'), "lines 50 to 52", "a quote inside a value"),
        ((f'{SECRET}"s,3,1',), "line 50", "a quote inside a value"),
        ((f'"{SECRET}"s,3,1',), "line 50", "a quote inside a value"),
        ((f'{SECRET}, "3",1',), "line 50", "a quote inside a value"),
        ((f"{SECRET},3",), "line 50", "2"),
        ((SECRET,), "line 50", "1"),
        ((f"{SECRET},3,1,",), "line 50", "4"),
        ((f"{SECRET},3,1,5",), "line 50", "4"),
        ((f"{SECRET};3;1",), "line 50", "1"),
        ((f"{SECRET}\t3\t1",), "line 50", "1"),
        ((f"{SECRET}\0,3,1",), "line 50", "a NUL character"),
    ],
)
def test_one_bad_line_of_200_is_an_error_with_its_number(lines, where, found) -> None:
    with pytest.raises(InputError) as error:
        read(numbered(*lines))
    assert error.value.name == f"file data.csv, {where}"
    assert str(error.value.found) == found
    assert SECRET not in str(error.value)


def test_a_stray_quote_that_a_later_value_would_close() -> None:
    """The values of lines 2 to 4 would be one record of three values, as the header names: 'b"' would be a value."""
    text = 'a,b,c\n"1,2,3\n4,5,6\n7,",b",9\n1,2,3\n'
    assert len(list(csv.reader(io.StringIO(text), strict=True))[1]) == 3  # what the standard library makes of it
    with pytest.raises(InputError, match="lines 2 to 4 must have quotes around whole values only"):
        read(text)


def test_bytes_that_are_not_utf_8() -> None:
    with pytest.raises(InputError, match=r"line 3 must be text in utf-8.*encoding = \"cp1252\"") as error:
        read(f"a,b\n1,2\n{SECRET},é\n".encode("cp1252"))
    assert SECRET not in str(error.value)
    assert read("a,b\n1,é\n".encode("cp1252"), encoding="cp1252").records == [["1", "é"]]
    with pytest.raises(InputError, match=r"text in UTF-16: encoding = \"utf-16\""):
        read("a,b\n1,é\n".encode("utf-16"))
    assert read("a,b\n1,é\n".encode("utf-16"), encoding="utf-16").records == [["1", "é"]]
    with pytest.raises(InputError, match="line 1 must be text; found 'a NUL character'"):
        read("a,b\n1,2\n".encode("utf-16-le"))


@pytest.mark.parametrize("encoding", ["none such", "hex", "", 5, None, "utf-8\0"])
def test_an_encoding_is_one_of_text(encoding) -> None:
    with pytest.raises(InputError, match="encoding must be the name of a text encoding"):
        read("a,b\n1,2\n", encoding=encoding)


@pytest.mark.parametrize("quote", ["ab", ",", "\n", 5, None, " "])
def test_a_quote_is_one_character_or_none(quote) -> None:
    with pytest.raises(InputError, match="quote must be one character"):
        read("a,b\n1,2\n", quote=quote)


@pytest.mark.parametrize(
    ("header", "shown"),
    [("a,b,a", "a"), ("a,b, a ", "a"), ("a,b,a,b", "a, b"), (",a,", "(no name)")],
)
def test_a_name_that_comes_twice_is_an_error(header, shown) -> None:
    row = ",".join(str(number) for number in range(header.count(",") + 1))  # the same values would be read once
    with pytest.raises(InputError, match=re.escape(f"must name every column once; found 'twice or more: {shown}'")):
        read(f"{header}\n{row}\n")


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_an_empty_file(text) -> None:
    with pytest.raises(InputError, match="must have a first line that names the columns"):
        read(text)


# ── what is fine ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n3,4\n",
        "a,b\n1,2\n3,4",
        "\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n\r\n",
        "\n\na,b\n   \n1,2\n\t\n3,4\n\n",
        "a,b\r1,2\r3,4\r",
        '"a","b"\n"1","2"\n3,"4"\n',
    ],
)
def test_line_breaks_blank_lines_quotes_and_byte_order_marks(text) -> None:
    found = read(text)
    assert (found.header, found.records, found.spread) == (["a", "b"], [["1", "2"], ["3", "4"]], ())


def test_quoted_line_breaks_and_doubled_quotes_are_values() -> None:
    found = read('a,b\n"one\ntwo","say ""hi"""\n"",x\n"""","\r\n"\n')
    assert found.records == [["one\ntwo", 'say "hi"'], ["", "x"], ['"', "\r\n"]]
    assert found.spread == ((2, 3), (5, 6))


def test_without_a_quote_quotes_are_characters() -> None:
    assert read('size,n\n5",1\n"6,2\n', quote="").records == [['5"', "1"], ['"6', "2"]]
    assert read("size,n\n'a,b',1\n", quote="'").records == [["a,b", "1"]]


def test_delimiters_at_the_end_of_every_line_make_no_columns() -> None:
    found = read("a,b,,\n1,2,,\n3,4,, \n")
    assert (found.header, found.records, found.without_name) == (["a", "b"], [["1", "2"], ["3", "4"]], (3, 4))
    assert read(",a\n0,2\n").header == ["", "a"]  # one without a name: the rows' numbers


# ── the class: any table, any dialect, one damage ──────────────────────────────────────────────────────────────────

CELL = st.text(st.sampled_from("ab1.-;, \t|\"'\r\nßé"), max_size=6)
# where only values that need quotes have them, the writer leaves out a break that does not end lines
QUOTING = st.sampled_from([(csv.QUOTE_MINIMAL, "\r\n"), *((csv.QUOTE_ALL, end) for end in ("\n", "\r\n", "\r"))])


@st.composite
def tables(draw) -> tuple[list[str], list[list[str]], dict]:
    """Names, records with some value (one without is an empty line but for delimiters), and a dialect."""
    width = draw(st.integers(2, 4))
    cells = st.lists(CELL, min_size=width, max_size=width).filter(lambda row: any(map(str.strip, row)))
    quoting, end = draw(QUOTING)
    dialect = {"delimiter": draw(st.sampled_from(",;\t|")), "quoting": quoting, "lineterminator": end}
    return [f"name{i}" for i in range(width)], draw(st.lists(cells, min_size=1, max_size=8)), dialect


def written(header: list[str], rows: list[list[str]], dialect: dict) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, **dialect).writerows([header, *rows])
    return file.getvalue()


@settings(max_examples=300)
@given(tables(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
def test_what_was_written_is_read(table, encoding) -> None:
    header, rows, dialect = table
    text = written(header, rows, dialect).encode(encoding)
    found = read(text, delimiter=dialect["delimiter"], encoding=encoding.removesuffix("-sig"))
    assert (found.header, found.records) == (header, rows)


@settings(max_examples=600)
@given(tables(), st.data())
def test_one_damage_never_makes_records_fewer_without_an_error(table, data) -> None:
    """Quotes too many or too few, delimiters, line breaks, NUL: all records, but for the damaged one, or an error.

    A line break that is lost between two records makes one of twice the width; one too many makes a short record. What
    stays possible is another value in the damaged record, an empty line, and a break between quotes.
    """
    header, rows, dialect = table
    text, delimiter = written(header, rows, dialect), dialect["delimiter"]
    first = len(written(header, [], dialect))
    at = data.draw(st.integers(first, len(text)))
    mark = data.draw(st.sampled_from(['"', "", delimiter, "\n", "\0", "x"]))
    over = data.draw(st.integers(0, 1))  # in place of a character, or before it
    damaged = text[:at] + mark + text[at + over :]
    try:
        found = read(damaged, delimiter=delimiter)
    except InputError as error:
        found, reported = None, str(error)
    if found is None:
        assert re.match(r"file data\.csv, lines? \d+( to \d+)? must", reported)
        return
    assert found.header == header
    if len(found.records) == len(rows) + 1:
        found.records.remove([""] * len(header))  # a delimiter on a line of its own
    assert len(found.records) == len(rows)
    assert sum(before != after for before, after in zip(rows, found.records, strict=True)) <= 1


@settings(max_examples=200)
@given(tables(), st.data())
def test_a_lost_or_added_value_is_an_error_with_its_line(table, data) -> None:
    header, rows, dialect = table
    place = data.draw(st.integers(0, len(rows) - 1))
    damaged = [list(row) for row in rows]
    damaged[place] = damaged[place][:-1] if data.draw(st.booleans()) else [*damaged[place], "x"]
    before = written(header, damaged[:place], dialect)
    line = len(re.findall("\r\n|\r|\n", before)) + 1
    damaged[place][0] += "x"
    with pytest.raises(InputError, match=rf"^file data\.csv, lines? {line}( to \d+)? must have {len(header)} values"):
        read(written(header, damaged, dialect), delimiter=dialect["delimiter"])


# ── fingerprints read the same rows ────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=100)
@given(tables())
def test_a_fingerprint_is_of_the_records_that_are_read(table) -> None:
    header, rows, dialect = table
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(written(header, rows, dialect).encode())
        found = fingerprint_csv(path, KEY, delimiter=dialect["delimiter"])
    assert found == fingerprint_columns(dict(zip(header, zip(*rows, strict=True), strict=True)), KEY)


def test_a_damaged_file_has_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(numbered(f'"{SECRET},3,1'))
    with pytest.raises(InputError, match="lines 50 to 201") as error:
        fingerprint_csv(tmp_path / "data.csv", KEY)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(tmp_path: Path, delimiter: str) -> None:
    rows = [["name", "size"], *([f"n{i}", "1,5" if delimiter != "," else "2"] for i in range(9))]
    (tmp_path / "data.csv").write_text("\n".join(map(delimiter.join, rows)))
    assert find_delimiter(tmp_path / "data.csv") == delimiter
