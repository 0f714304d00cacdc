"""The benchmarks' own arithmetic: from answers to figures, rows, tables. No time is measured."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import hlo  # noqa: E402
import marks  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402
import scaling  # noqa: E402
import scaling_model  # noqa: E402
import summary  # noqa: E402
from contenders import Job, NoAnswerError  # noqa: E402
from rows import Measurement, Row  # noqa: E402

pytestmark = pytest.mark.any_mpi

OURS, THEIRS = Measurement("a", "call x 1 1"), Measurement("b", "call x 1 1")


def row(**kwargs):
    return Row("section", "what", "over", OURS, THEIRS, **kwargs)


def test_the_slowest_rank_counts():
    answers = [[[1.0, 8.0], [3.0, 5.0]], [[2.0, 7.0], [1.0, 6.0]]]  # rank, repetition, number
    assert report.slowest(answers) == [[2.0, 8.0], [3.0, 6.0]]
    with pytest.raises(ValueError, match="zip"):
        report.slowest([[[1.0]], []])  # a rank that made fewer repetitions


@pytest.mark.parametrize(
    ("line", "repetitions", "figures"),
    [
        ("chain allreduce f32 4 10 2 3", [[18.0, 2.0], [11.0, 3.0], [42.0, 2.0]], [2.0]),
        ("loop allreduce 4 10 2 1", [[18.0, 2.0]], [2.0]),
        ("call jit 300 3", [[3.0], [1.0], [2.0]], [2.0]),
        ("grow allreduce 100", [[4096, 1]], [4096, 1]),
    ],
)
def test_figures_of_a_round(line, repetitions, figures):
    assert report.figure_of(line, repetitions) == figures


@pytest.mark.parametrize(
    ("kind", "value"), [("ratio", 1.5), ("speed", 2 / 3), ("difference", 1e6), ("number", 3.0), ("time", 3e6)]
)
def test_rows_compare_round_by_round(kind, value):
    figures = {OURS: [[2.0], [3.0], [60.0]], THEIRS: [[4.0], [2.0], [1.0]]}
    result = report.result_of(row(kind=kind), figures)
    assert result.value == pytest.approx(value)
    assert result.low < result.value < result.high


@pytest.mark.parametrize(
    ("target", "at_least", "word"),
    [(1.5, False, "yes"), (1.4, False, "**no**"), (1.5, True, "yes"), (1.6, True, "**no**")],
)
def test_targets(target, at_least, word):
    assert report.reached(row(target=target, at_least=at_least), report.Result(1.5)) == word
    assert report.reached(row(target=target), report.Result(None, why_not="gone")) == "not measured"


def test_table_names_missing_measurements():
    figures = {OURS: [[1.0]], THEIRS: "b: it could not be installed: no compiler"}
    table = report.rows_table([row(target=1.0)], figures)
    assert table.splitlines()[2].split(" | ")[3:6] == [
        "not available: b: it could not be installed: no compiler",
        "",
        "not measured",
    ]


@pytest.mark.parametrize(("ours", "theirs"), [(-1.0, 2.0), (1.0, 0.0), (-1.0, -1.0)])
def test_a_ratio_of_noise_is_none(ours, theirs):
    result = report.result_of(row(target=1.0), {OURS: [[ours]], THEIRS: [[theirs]]})
    assert result.value is None
    assert "noise" in result.why_not


def test_tables():
    assert report.table(["a", "b"], [["1", "x|y"]]) == "| a | b |\n| --- | --- |\n| 1 | x\\|y |"
    numbers = [
        report.number(v, k) for v, k in [(1.234, "ratio"), (1234.5, "ratio"), (0.2, "difference"), (None, "ratio")]
    ]
    assert numbers == ["1.23", "1,234", "0.20 us", "-"]


@pytest.mark.parametrize("effort", [rows.FULL, rows.QUICK], ids=["full", "quick"])
def test_a_whole_report(effort, tmp_path):
    """Every row has its measurements, and its line in the table."""
    wanted = rows.rows(effort)
    figures = {m: [[2e-6, 0.0]] * effort.rounds for r in wanted for m in r.measurements()}
    figures[Measurement("gloo", "")] = "unused"
    text = report.document("Title", {"processor": "p"}, wanted, figures, ["a remark"])
    for r in wanted:
        assert f"| {r.what} | {r.over} |" in text
    for op in rows.OPS:
        target, reached = ("1.10", "yes") if op == "sendrecv" else ("0.90", "**no**")
        assert f"| {op}, 1 MiB | raw C | <= {target} | 1.00 | 1.00 to 1.00 | {reached} | 1.00 |" in text
    files = report.draw(wanted, figures, tmp_path, "mpi")
    assert {file.name for file in files} == {"mpi-chains.svg", "mpi-calls.svg", "mpi-models.svg"}
    assert all(file.stat().st_size > 1000 for file in files)


PROGRAM = """HloModule m
%body.1 (a: (token[], f32[8])) -> (token[], f32[8]) {
  %c = (f32[8]{0}, token[]) custom-call(%x, %t), custom_call_target="mpixla_pack", api_version=X
  %c = (f32[8]{0}, token[]) custom-call(%x, %t), custom_call_target="mpixla_scan", api_version=X
  %copy.1 = f32[8]{0} copy(%y)
  ROOT %r = (token[], f32[8]{0}) tuple(%t, %copy.1)
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %copy.2 = f32[8]{0} copy(%x)
  %copy.3 = s32[] copy(%zero)
  %w = (token[], f32[8]{0}) while(%tuple), condition=%cond.2, body=%body.1, metadata={}
  %p = f32[8]{0} custom-call(%x), custom_call_target="cholesky"
}
"""


def test_programs_are_read():
    assert hlo.communications(PROGRAM) == ["mpixla_scan"]
    assert [line.split()[0] for line in hlo.copies(PROGRAM, 32)] == ["%copy.1", "%copy.2"]
    assert [line.split()[0] for line in hlo.copies(hlo.loop_body(PROGRAM), 32)] == ["%copy.1"]
    with pytest.raises(ValueError, match="0 loops"):
        hlo.loop_body("ENTRY %main () -> f32[] {\n}\n")


CONTENDER = """import os, sys, time
sys.path.insert(0, {bench!r})
from worker import serve
rank = int(sys.argv[2])
def fail(): raise ValueError("no such thing")
serve(sys.argv[1], rank, {{"add": lambda a, b: [[a + b + rank]], "fail": fail, "die": lambda: os._exit(3),
                           "sleep": lambda: time.sleep(60)}})
"""


@pytest.fixture
def contender(tmp_path):
    script = tmp_path / "contender.py"
    script.write_text(CONTENDER.format(bench=str(ROOT / "bench")))
    commands = [[sys.executable, str(script), "{socket}", str(rank)] for rank in (1, 0)]
    job = Job("contender", commands, 2, {}, tmp_path / "log")
    yield job
    job.close()


def test_contenders_answer(contender):
    assert contender.ask("add 1 2", 20) == [[[3]], [[4]]]
    with pytest.raises(NoAnswerError, match=r"^ValueError: no such thing$"):
        contender.ask("fail", 20)
    with pytest.raises(NoAnswerError, match="does not measure 'dance'"):
        contender.ask("dance", 20)
    assert contender.ask("add 0 0", 20) == [[[0]], [[1]]]


@pytest.mark.parametrize(("line", "why"), [("die", "it ended"), ("sleep", "it did not answer 'sleep' within 1 s")])
def test_contenders_that_are_lost_stay_lost(contender, line, why):
    for _ in range(2):
        with pytest.raises(NoAnswerError, match=why):
            contender.ask(line, 1)


def test_contenders_that_do_not_start(tmp_path):
    job = Job("gone", [[sys.executable, "-c", "raise OSError('no MPI here')"]], 2, {}, tmp_path / "log")
    with pytest.raises(NoAnswerError, match=r"did not start \(OSError: no MPI here\)"):
        job.ask("about", 1)


def test_help():
    done = subprocess.run(
        [sys.executable, ROOT / "bench/run.py", "--help"], capture_output=True, text=True, check=True, timeout=200
    )
    assert "--quick" in done.stdout


def test_pages_show_the_measured_figures():
    for page, text in summary.pages().items():
        assert text == page.read_text(), "run: python bench/summary.py"


def test_headlines_are_two_times():
    """Medians in microseconds: ours, and mpi4jax's where a line says so; of one step where many were measured."""
    by_name = {(row.section, row.what, row.over): row for row in summary.all_rows()}
    for line in summary.HEADLINES:
        row = by_name[line.row]
        theirs = row.peer if line.is_peer else row.against
        figures = {row.measured: [[3e-6 * line.steps], [1.0], [0.0]], theirs: [[1.5e-3 * line.steps]]}
        run = "-clients" if row.section == rows.CLIENTS else ""
        lines = summary.headlines({"mpich": {run: figures}}).splitlines()[2:]
        assert f"| {line.says} | {line.than} | 3.0 µs / 1.5 ms |" in lines
        assert all(line.endswith("| - / - |") for line in lines if "3.0 µs" not in line)
        assert line.steps == 1 or str(line.steps) == str(math.prod(map(int, row.measured.line.split()[-2:])))


def test_headlines_compare_like_with_like():
    """In a loop the library works in place, which the program in C that it would be compared with does not."""
    assert all("loop" not in line.row[0] for line in summary.HEADLINES)


def test_scaling_page_shows_the_measured_figures():
    text = scaling.PAGE.read_text()
    again = scaling_model.page(text, scaling_model.NAME, scaling_model.tables(scaling_model.figures()))
    for name in ("mpich", "openmpi"):
        again = scaling.page(again, name, scaling.tables(scaling.figures_of(name)))
    assert again == text, "run: python bench/scaling_model.py --keep"


def test_fill_replaces_text_between_marks():
    text = f"a\n<b>\n{marks.END}c\n<d>\nold\n{marks.END}"
    filled = marks.fill(marks.fill(text, "<b>\n", "new"), "<d>\n", r"\1")
    assert filled == f"a\n<b>\n\nnew\n\n{marks.END}c\n<d>\n\n\\1\n\n{marks.END}"
    with pytest.raises(ValueError, match="no place between '<e>"):
        marks.fill(text, "<e>\n", "")


def test_model():
    network = scaling_model.Network("", latency=2.0, bandwidth=10.0)
    assert network.message(30) == 5
    assert network.allreduce(40, 2) == 2 * 2 + 40 / 10
    assert network.allreduce(40, 5) == 2 * 3 * 2 + 2 * 4 / 5 * 40 / 10
    compute = scaling_model.Compute([(10, 7.0), (20, 9.0), (80, 36.0)])
    assert [compute(n) for n in (0, 5, 10, 80, 160)] == pytest.approx([5, 6, 7, 36, 72])
    assert compute(40) == pytest.approx(18)
    # 4 ranks have 2 x 2 blocks of 4 x 5 cells, and messages of 3 * 4 bytes for each cell of an edge.
    assert scaling_model.water(compute, network, 4, 8, 10) == pytest.approx(9 + 2 + 60 / 10 + 2 + 48 / 10)
    assert scaling_model.water(compute, network, 1, 8, 10) == 36
    assert scaling_model.training(compute, network, 1, 20) == pytest.approx(9)


def test_report_of_a_job():
    report = "mpixla: rank 1 has waited for 5 s\n  It waits.\nWhat each rank does:\n  rank 0:\n"
    assert scaling.said_by_one(f"noise\n{report}Abort(124)\n") == report
    refusal = "r1 | MPIXLA_CHECK: the ranks do not agree:\n  rank 0: a\n (at a.py:1)"
    assert scaling.said_by_one(f"Error: {refusal}\n{refusal}") == refusal
    with pytest.raises(RuntimeError, match="no report in\nnothing"):
        scaling.said_by_one("nothing")
