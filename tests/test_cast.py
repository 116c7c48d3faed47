"""Recording of a terminal: the committed one, its drawing, and the recorder with short commands in a real one."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from gpu_healthcheck.sim.recording import COMMANDS, LONGEST_SECONDS, ON_THE_CLUSTER, record_the_cluster
from tests.markup import HOSTILE, LIVE, parsed
from tools import cast
from tools.cast import COLUMNS, ROWS, Cast, Event, Header, Recorder, Screen, read, screen_of, svg

ROOT = Path(__file__).parents[1]
RECORDED = read((ROOT / "docs/images/terminal.cast").read_text())
DRAWN = (ROOT / "docs/images/terminal.svg").read_text()
WORDS = ("rebooted: pass", "1 node: 1 fail", "PodOnFaultyGpu node/", "drain and reboot", "dmesg.txt: fail")
"""Words of each command's output, which it prints only if it worked."""
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
SVG = "{http://www.w3.org/2000/svg}"


def rows(screen: Screen) -> list[str]:
    return ["".join(cell.character for cell in cells) for cells in screen.rows]


def played(*outputs: tuple[float, str]) -> Cast:
    return Cast(Header(), tuple(Event(at, "o", text) for at, text in outputs))


def test_the_recording_is_of_80_columns_and_at_most_a_minute() -> None:
    times = [event.at for event in RECORDED.events]

    assert (RECORDED.header.version, RECORDED.header.width, LONGEST_SECONDS) == (2, 80, 60)
    assert times == sorted(times)
    assert 0 < times[-1] <= LONGEST_SECONDS
    assert max(map(len, rows(screen_of(RECORDED)))) <= 80


def test_the_recording_has_the_commands_of_its_script() -> None:
    typed = [row.removeprefix("$ ") for row in rows(screen_of(RECORDED)) if row.startswith("$ ")]

    assert RECORDED.commands == COMMANDS
    assert typed == [*COMMANDS]


def outputs_with_their_words(recorded: Cast, words: tuple[str, ...]) -> list[bool]:
    outputs = re.split(r"(?m)^\$ .*$", "\n".join(rows(screen_of(recorded))))[1:]
    return [word in output for word, output in zip(words, outputs, strict=True)]


def test_each_recorded_command_has_worked() -> None:
    assert outputs_with_their_words(RECORDED, WORDS) == [True] * len(COMMANDS)
    assert outputs_with_their_words(RECORDED, WORDS[::-1]) != [True] * len(COMMANDS)


@pytest.mark.cluster
def test_the_commands_of_the_script_work_and_can_be_drawn(tmp_path: Path) -> None:
    recorder = Recorder()

    record_the_cluster(recorder, tmp_path)

    recorded = recorder.cast()
    assert recorded.commands == ON_THE_CLUSTER
    assert outputs_with_their_words(recorded, WORDS[1:]) == [True] * len(ON_THE_CLUSTER)
    assert recorded.commands[-1] in svg(recorded)


def test_the_recording_names_no_folder_of_the_machine() -> None:
    assert re.findall(r"/(?:tmp|root|home|work)\b\S*", "\n".join(rows(screen_of(RECORDED)))) == []


def test_a_recording_that_is_written_is_read_again() -> None:
    assert read(RECORDED.lines()) == RECORDED


@pytest.mark.parametrize(
    "lines",
    [
        '{"version":3,"width":80,"height":24,"title":""}\n',
        '{"version":2,"width":"80","height":24,"title":""}\n',
        '{"version":2,"width":80,"height":24,"title":""}\n[0.1,"x","a"]\n',
        '{"version":2,"width":80,"height":24,"title":""}\n[0.1,"o"]\n',
        '{"version":2,"width":80,"height":24,"title":""}\n[0.1,"o",\n',
    ],
)
def test_a_file_of_another_format_is_refused(lines: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(lines)


def test_the_image_is_small_and_shows_each_row_within_its_columns() -> None:
    root = ET.fromstring(DRAWN)
    group = next(element for element in root.iter(f"{SVG}g") if element.get("id") == "rows")
    shown: dict[float, str] = {}
    for text in group:
        start, width = float(text.attrib["x"]), float(text.attrib["textLength"])
        column = round(start / 8.4)
        row = shown.get(float(text.attrib["y"]), "")
        assert len(row) <= column <= round((start + width) / 8.4) <= COLUMNS
        assert round(width / 8.4) == len(text.text or "")
        shown[float(text.attrib["y"])] = row.ljust(column) + (text.text or "")

    assert len(DRAWN.encode()) <= 60 * 1024
    written = [row.rstrip() for row in rows(screen_of(RECORDED)) if row.strip()]
    assert [shown[y] for y in sorted(shown)] == written
    assert float(DRAWN.partition("translate(0,")[2].partition(")")[0]) + max(shown) < ROWS * 17


def test_the_image_is_an_image_alone_and_named() -> None:
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(DRAWN).iter()}

    assert tags == {"svg", "title", "desc", "style", "rect", "circle", "text", "g"}
    assert "prefers-reduced-motion" in DRAWN
    alternative = re.search(r"!\[(.*)\]\(docs/images/terminal\.svg\)", (ROOT / "README.md").read_text())
    assert alternative
    assert all(command in alternative[1] for command in COMMANDS)


def test_the_image_scrolls_to_a_row_once_it_is_final() -> None:
    progress = played((1.0, "a\r\nlisting"), (2.0, "\x1b[2K\rb\r\n"), (4.0, ""))

    stops = dict(re.findall(r"([\d.]+)%\{transform:translateY\((-?\d+)px\)", svg(progress)))

    assert stops == {"0.0": str(17 * (ROWS - 1)), "50.0": str(17 * (ROWS - 3))}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_never_markup_of_the_image(text: str) -> None:
    drawn = parsed(svg(played((0.0, text), (1.0, ""))))

    assert set(drawn.tags) & {*LIVE} == set()
    assert text in "".join(drawn.words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb", ["a", "b"]),
        ("abc\rX", ["Xbc"]),
        ("a\nb", ["a", " b"]),
        ("x" * 81, ["x" * 80, "x"]),
        ("x" * 80 + "\r\ny", ["x" * 80, "y"]),
        ("a\r\nb\r\x1b[1A\x1b[2Kc", ["c", "b"]),
        ("\x1b[?25lab\x1b[2K\rc\x1b[?25h", ["c"]),
    ],
)
def test_rows_of_a_terminal(text: str, expected: list[str]) -> None:
    screen = Screen()
    screen.write(text, 0.0)
    assert rows(screen) == expected


@pytest.mark.parametrize(
    ("text", "styles"),
    [
        ("a\x1b[1;31mb\x1b[0mc", ["", "br", ""]),
        ("\x1b[2ma\x1b[mb", ["d", ""]),
    ],
)
def test_styles_of_a_terminal(text: str, styles: list[str]) -> None:
    screen = Screen()
    screen.write(text, 0.0)
    assert [cell.style for cell in screen.rows[0]] == styles


@pytest.mark.parametrize("text", ["\x1b[38;5;1m", "\x1b[2J", "\x1b[3A", "\x1b[", "\x1b]0;title\x07", "\x07", "\t"])
def test_what_can_not_be_drawn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        Screen().write(text, 0.0)


def test_a_command_is_typed_and_runs_in_a_terminal_of_that_size(tmp_path: Path) -> None:
    recorder = Recorder()

    codes = [recorder.run(command, tmp_path, ENVIRONMENT) for command in ("stty size", "test -t 1 && pwd", "false")]

    recorded = recorder.cast()
    assert codes == [0, 0, 1]
    assert recorded.commands == ("stty size", "test -t 1 && pwd", "false")
    path = f"{tmp_path}\r\n"
    output = "".join(event.text for event in recorded.events if event.kind == "o")
    assert f"{ROWS} {COLUMNS}\r\n" in output
    assert path in output


@pytest.mark.parametrize(("longest", "shortened"), [(0.25, True), (60.0, False)])
def test_only_a_long_pause_is_shortened(
    longest: float, shortened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cast, "LONGEST_PAUSE_SECONDS", longest)
    recorder = Recorder()
    recorder.run("echo one; sleep 1; echo two", tmp_path, ENVIRONMENT)

    at = {event.text.strip(): event.at for event in recorder.cast().events if event.text.endswith("\r\n")}

    assert (at["two"] - at["one"] <= 0.251) is shortened


def test_a_character_that_arrives_in_two_parts_is_one(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.run(r"printf '\342'; sleep 0.2; printf '\224\200'", tmp_path, ENVIRONMENT)
    assert [event.text for event in recorder.cast().events if "─" in event.text] == ["─"]
