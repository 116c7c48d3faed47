"""Count the words that make this project hard to read, and fail above the limits.

`python -m tools.words` prints one row per rule: the figure, the limit and the aim. `--where RULE` lists the places.
A limit is the figure that the tree has reached so far: it is only ever lowered, towards the aim.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]

# Pages that a program generates from other texts, or lists of names.
GENERATED_PAGES = ("docs/causes.md", "docs/checks.md", "docs/metrics.md", "docs/commands.md", "docs/licences.md")

# Packages of the product: the limits for duplicate names apply to these only.
PRODUCT = ("agent/", "cli/", "diagnosis/", "healthcheck/", "quarantine/", "sweeper/")

RULED_OUT_WORDS = re.compile(r"\b(?:nobody|whoever|somebody|what of)\b", re.IGNORECASE)
RULED_OUT_NAMES = ("told", "whose", "beside", "around", "wish")
LONG_SENTENCE = 30  # words


@dataclass(frozen=True)
class Rule:
    """One count, with its present limit and its aim."""

    name: str
    meaning: str
    limit: float
    aim: float


RULES = (
    Rule("what", "'what' per 1,000 words of docstrings and comments", 2, 2),
    Rule("words", "nobody, whoever, somebody, 'what of' in docstrings and comments", 0, 0),
    Rule("names", "identifiers with told, whose, beside, around or wish", 0, 0),
    Rule("one", "files of the product with `one` as a name", 60, 60),
    Rule("docstrings", "public modules and classes without a docstring", 0, 0),
    Rule("classes", "class names used more than once in the product", 5, 5),
    Rule("modules", "module names used more than once in the product", 15, 15),
    Rule("sentence-p90", "words in a sentence of the docs, 90th percentile", 25, 25),
    Rule("sentence-long", "% of the docs' sentences over 30 words", 4, 4),
    Rule("docs", "words of docs without generated pages", 45_000, 45_000),
    Rule("readme", "lines of README.md", 110, 110),
)


@dataclass
class Counts:
    """Figure of each rule, and the counted places."""

    figures: dict[str, float] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Source:
    """A Python file: its path from the root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def is_test(self) -> bool:
        """Whether the file belongs to the tests."""
        return self.path.startswith("tests/")

    @property
    def is_product(self) -> bool:
        """Whether the file belongs to a package of the product."""
        return self.path.startswith(PRODUCT)


def tracked(suffix: str) -> list[str]:
    """Return the tracked files with this suffix, without deleted ones."""
    listing = subprocess.run(  # noqa: S603 - a fixed command
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{suffix}"],  # noqa: S607 - git from PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for path in listing.splitlines() if (ROOT / path).is_file()]


def python_sources() -> list[Source]:
    """Parse each Python file of the project."""
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in tracked(".py")}
    return [Source(path, text, ast.parse(text)) for path, text in texts.items()]


def prose(source: Source) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring and comment, without quoted code."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield (node.body[0].lineno, plain(text))
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#(?:!|\s*(?:noqa|type:|pragma|fmt:|ruff:))", token.string):
            yield token.start[0], plain(token.string.lstrip("# "))


def plain(text: str) -> str:
    """Return the text without code between backticks and without remarks for linters."""
    return re.sub(r"#\s*noqa:[\w\s,]*|`[^`]*`", " ", text)


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each identifier that the file binds."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def words_of_name(name: str) -> list[str]:
    """Split an identifier at underscores and capitals, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def count_prose(sources: list[Source], counts: Counts) -> None:
    """Count the ruled-out words of docstrings and comments."""
    total = hits = 0
    for source in sources:
        for line, text in prose(source):
            total += len(re.findall(r"[A-Za-z][\w'-]*", text))
            whats = re.findall(r"\bwhat\b", text, re.IGNORECASE)
            hits += len(whats)
            counts.places["what"] += [f"{source.path}:{line}"] * len(whats)
            counts.places["words"] += [f"{source.path}:{line} {word}" for word in RULED_OUT_WORDS.findall(text)]
    counts.figures["what"] = round(1000 * hits / total, 1)
    counts.figures["words"] = len(counts.places["words"])


def count_names(sources: list[Source], counts: Counts) -> None:
    """Count identifiers that do not describe their value."""
    for source in sources:
        bound = list(names(source.tree))
        counts.places["names"] += [
            f"{source.path}:{line} {name}"
            for line, name in bound
            if any(word in RULED_OUT_NAMES or word == "wishes" for word in words_of_name(name))
        ]
        if source.is_product and any(name in ("one", "_one") for _, name in bound):
            counts.places["one"].append(source.path)
    for rule in ("names", "one"):
        counts.figures[rule] = len(counts.places[rule])


def count_definitions(sources: list[Source], counts: Counts) -> None:
    """Count duplicate names of classes and modules, and public ones without a docstring."""
    classes: dict[str, list[str]] = defaultdict(list)
    modules: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        if source.is_test:
            continue
        public = [
            node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        stem = Path(source.path).stem
        if source.is_product:
            for node in public:
                classes[node.name].append(f"{source.path}:{node.lineno}")
            if not stem.startswith("__"):
                modules[stem].append(source.path)
        if source.text.strip() and not ast.get_docstring(source.tree) and not stem.startswith("_"):
            counts.places["docstrings"].append(source.path)
        counts.places["docstrings"] += [
            f"{source.path}:{node.lineno} {node.name}" for node in public if not ast.get_docstring(node)
        ]
    counts.figures["docstrings"] = len(counts.places["docstrings"])
    for rule, found in (("classes", classes), ("modules", modules)):
        counts.places[rule] = [f"{name}: {', '.join(where)}" for name, where in sorted(found.items()) if len(where) > 1]
        counts.figures[rule] = len(counts.places[rule])


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a Markdown page without code and headings; table cells and list items are separate."""
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"^(`{3,}).*?^\1", "\n", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"`[^`\n]*`", "code", page)
    page = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", page)
    blocks: list[list[str]] = [[]]
    for line in page.splitlines():
        if re.match(r"\s*(?:#|$)", line):
            blocks.append([])
        elif line.lstrip().startswith("|"):
            blocks += [[cell] for cell in line.strip().strip("|").split("|")]
        elif re.match(r"\s*(?:[-*]|\d+\.)\s", line):
            blocks.append([re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", line)])
        else:
            blocks[-1].append(line)
    for block in blocks:
        yield from (part for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z*\"'(]|code)", " ".join(block)) if part.strip())


def count_docs(counts: Counts) -> None:
    """Measure the hand-written pages: their length and the length of their sentences."""
    pages = [path for path in tracked(".md") if path.startswith("docs/") or path == "README.md"]
    lengths: list[int] = []
    total = 0
    for path in pages:
        if path in GENERATED_PAGES:
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        total += len(text.split()) if path != "README.md" else 0
        for sentence in sentences(text):
            length = len(re.findall(r"[\w'-]+", sentence))
            lengths.append(length)
            if length > LONG_SENTENCE:
                counts.places["sentence-long"].append(f"{path} ({length} words) {sentence[:90]}")
    lengths = sorted(length for length in lengths if length > 1)
    counts.figures |= {
        "sentence-p90": lengths[int(len(lengths) * 0.9)],
        "sentence-long": round(100 * sum(length > LONG_SENTENCE for length in lengths) / len(lengths), 1),
        "docs": total,
        "readme": len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()),
    }


def count() -> Counts:
    """Count every rule over all files of the project."""
    counts = Counts()
    sources = python_sources()
    steps: tuple[Callable[[list[Source], Counts], None], ...] = (count_prose, count_names, count_definitions)
    for step in steps:
        step(sources, counts)
    count_docs(counts)
    return counts


def main() -> int:
    """Print the table; return 1 if a figure is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m tools.words", description=__doc__)
    parser.add_argument("--where", metavar="RULE", choices=[rule.name for rule in RULES], help="list the places of one")
    parser.add_argument("--by-file", action="store_true", help="with --where: how many in each file")
    args = parser.parse_args()
    counts = count()
    if args.where:
        places = counts.places[args.where]
        if args.by_file:
            places = [
                f"{number:5} {path}" for path, number in Counter(re.split(r"[: ]", p)[0] for p in places).most_common()
            ]
        sys.stdout.write("".join(f"{place}\n" for place in places))
        return 0
    table = Table("rule", "counts", "today", "limit", "aim")
    above = [rule for rule in RULES if counts.figures[rule.name] > rule.limit]
    for rule in RULES:
        style = "red" if rule in above else None
        table.add_row(
            rule.name, rule.meaning, f"{counts.figures[rule.name]:g}", f"{rule.limit:g}", f"{rule.aim:g}", style=style
        )
    Console(stderr=bool(above), width=110).print(table)
    if above:
        sys.stderr.write(f"above the limit: see python -m tools.words --where {above[0].name}\n")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
