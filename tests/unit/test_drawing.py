"""Lines, pictures and tables of schedules."""

import csv
import html
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import optim
from optim.closed_form import formulas
from optim.lr_scheduler import StepLR
from tests.building import sgd
from tests.laws.growing_runs import runs_with_batch_sizes
from tests.laws.rows import ROWS
from timesched import *  # noqa: F403  # schedules of many kinds are drawn
from timesched.drawing.lines import Source, default_run, line, run_length, ticks, values
from timesched.drawing.schedulers import sources
from timesched.drawing.svg import svg
from timesched.drawing.table import Table, values_table
from timesched.drawing.text import text
from timesched.testing.runs import runs
from timesched.time.timestamp import Timestamp
from timesched.time.units import format_number


@settings(max_examples=settings.default.max_examples // 10 + 1)
@given(st.data())
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_schedule_can_be_drawn(row, data):
    """And the end that its row promises is marked. What does not suit a run cannot be called there either."""
    run = data.draw(runs(longest=2000) | runs_with_batch_sizes())
    schedule, horizon = data.draw(row.schedules(run)), run.horizon()
    source = Source("a <name>", schedule, horizon, 0.25)
    unit, length = run_length(horizon)
    try:
        found = values(source)
    except ValueError:
        with pytest.raises(ValueError):
            schedule(run.state(0))
        return
    places = list(found)
    assert places[0] == 0 and places[-1] == length and places == sorted(places)
    for count in data.draw(st.lists(st.sampled_from(places), max_size=5)):
        assert found[count] == 0.25 * schedule.at(Time._make(count, unit), horizon)
    drawn = line(source)
    assert list(drawn.y) == list(found.values()) and len(drawn.x) == len(drawn.y)
    assert all(0 <= x <= drawn.x[-1] for _, x in drawn.marks)
    assert max(map(len, text([drawn], 70).splitlines())) <= 70
    assert ElementTree.fromstring(svg([drawn])).tag.endswith("svg")
    until = row.promise(schedule, horizon).until
    if until is not None and until[0] > 0:
        marks = [horizon.change(time.exact, time.unit, TimeUnit.BATCH) for _, time in schedule.marks(horizon)]
        assert horizon.change(*until, TimeUnit.BATCH) in marks


def test_a_jump_is_drawn_as_one():
    """However long the run is: the points on both sides are neighbouring batches."""
    schedule = MultiStepScheduler([f"{Fraction(123456789)}ba", "0.7dur"], gamma=0.5)
    found = values(Source("", schedule, Horizon("1000000000ba")))
    jumps = [(a, b) for a, b in pairwise(found) if found[a] != found[b]]
    assert jumps == [(123456788, 123456789), (699999999, 700000000)]
    # without a mark the place of the jump is found by halving, to a millionth of the run
    restarts = values(Source("", StepScheduler("123456789ba", gamma=0.5), Horizon("1000000000ba")))
    for a, b in pairwise(restarts):
        if restarts[a] - restarts[b] > 0.01:  # what is less cannot be seen
            assert b - a <= 1000 and any(a < n * 123456789 <= b for n in range(1, 9))
    assert len(values(Source("", ConstantScheduler(), Horizon("1000000000ba")))) == 502  # nothing moves


CYCLES = {
    "restarts": CosineAnnealingWarmRestartsScheduler("100ba"),
    "triangles": CyclicScheduler("50ba", alpha_i=0.0),
    "steep triangles": CyclicScheduler("90ba", "10ba", alpha_i=0.0),
    "triangles after a warmup": SequenceScheduler([ConstantScheduler(0.5), CyclicScheduler("50ba")], ["100ba"]),
    "triangles of values": formulas.Cyclic(0.1, 1.0, 70, 30),
    "a wave": formulas.CosineAnnealing(1.0, 100),
}


@pytest.mark.parametrize("number", [5, 100, 500, 501, 10**6])
@pytest.mark.parametrize("name", CYCLES)
def test_cycles_go_all_the_way_up_and_down_in_a_picture(name, number):
    """In each stretch of the run, however many they are; and no stretch is drawn with few points."""
    length = 100 * number
    curve = CYCLES[name].curve(Horizon(f"{length}ba"), "ba")
    cycle = [curve(batch) for batch in range(200, 400)]
    found = values(Source("", CYCLES[name], Horizon(f"{length}ba")))
    stretches = min(number // 2, 50)
    for i in range(1, stretches):  # the first has another schedule in it
        drawn = [y for x, y in found.items() if i * length <= x * stretches <= (i + 1) * length]
        assert min(drawn) == min(cycle) and max(drawn) == max(cycle), i
        assert len(drawn) > len(found) / stretches / 4, i


def test_marks_are_where_phases_begin_and_end():
    def marks(schedule, run):
        return [f"{name} {time}" for name, time in schedule.marks(run)]

    run = Horizon("1000ba", samples_per_batch=8, ssr=2.0)
    assert marks(WarmupStableDecayScheduler("80ba", "800sp"), run) == ["warmup 80ba", "decay 1800ba", "end 2000ba"]
    inner = LinearWithWarmupScheduler("10ba", t_max="100ba")
    sequence = SequenceScheduler([LinearScheduler(t_max="50ba"), inner], ["0.25dur"])
    assert marks(sequence, run) == ["end 100ba", "phase 500ba", "warmup 510ba", "end 700ba"]
    assert marks(PowerScheduler("10ba"), run) == [] and marks(LinearWithWarmupScheduler("0ba"), run)[0] == "end 2000ba"
    assert marks(CosineAnnealingWarmRestartsScheduler("3ba"), run) == ["period 6ba"]
    for cycles in (CyclicScheduler("3ba", "80sp"), formulas.Cyclic(0.1, 1.0, "3ba", "80sp")):
        assert marks(cycles, run) == ["peak 6ba", "period 26ba"]
    run = Horizon("400sp", samples_per_batch=BatchSizeSchedule({"0sp": 8, "80sp": 16}))
    assert marks(LinearWithWarmupScheduler("15ba"), run) == ["warmup 15ba", "end 400sp"]
    drawn = line(Source("", LinearWithWarmupScheduler("15ba"), run))
    assert drawn.marks == (("warmup", 160.0), ("end", 400.0)) and drawn.unit is TimeUnit.SAMPLE


def test_the_axis_is_in_the_unit_that_is_asked_for():
    run = Horizon("4ep", batches_per_epoch=25, samples_per_batch=8)
    lasts = {None: 4.0, "ba": 100.0, "sp": 800.0, "dur": 1.0}
    for unit, last in lasts.items():
        drawn = line(Source("", LinearScheduler(), run), unit)
        assert drawn.x[-1] == last and drawn.x[0] == 0.0 and drawn.y[0] == 1.0 and drawn.y[-1] == 0.0
    with pytest.raises(ValueError, match="tokens_per_sample"):
        line(Source("", LinearScheduler(), run), "tok")
    with pytest.raises(ValueError, match="max_duration=None"):
        line(Source("", LinearScheduler(t_max="3ba"), Horizon(None)))


def test_a_run_is_drawn_to_its_end():
    """To the end of a batch that it ends within, and of a token."""
    drawn = line(Source("", LinearScheduler(), Horizon("100sp", samples_per_batch=8)), "ba")
    assert drawn.x[-1] == 13.0 and drawn.y[-1] == 0.0
    drawn = line(Source("", LinearScheduler(), Horizon("3tok", ssr=0.5)))
    assert (drawn.x, drawn.y, drawn.marks) == ((0.0, 1.0, 1.5), (1.0, 1.0 - 1.0 / 1.5, 0.0), (("end", 1.5),))
    with pytest.raises(ValueError, match="growth is inf at 2ba"):
        line(Source("growth", StepScheduler("1ba", gamma=1e300), Horizon("3ba")))


def test_a_table_of_runs_of_other_lengths():
    """Each schedule has its own value at the count of the row; at a share of the run, if there is no count."""
    sources = [Source("short", LinearScheduler(), Horizon("4ba")), Source("long", LinearScheduler(), Horizon("8ba"))]
    assert values_table(sources, "2ba").rows == [(0, 0, 1.0, 1.0), (0.5, 2, 0.5, 0.75), (1, 4, 0.0, 0.5)]
    assert values_table(sources, "2ba", "dur").rows == [(0, 1.0, 1.0), (0.5, 0.5, 0.5), (1, 0.0, 0.0)]
    with pytest.raises(ValueError, match=r"sources=\[\]"):
        values_table([])


def overlaps(ax):
    """Whether the legend lies on the axes."""
    return bool(ax.get_legend().get_window_extent().overlaps(ax.get_window_extent()))


def test_plot_draws_on_the_axes_that_it_is_given():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    ax = LinearScheduler().plot(Horizon("10ba"))
    assert CosineAnnealingScheduler().plot(Horizon("10ba"), ax=ax) is ax
    assert [each.get_text() for each in ax.get_legend().get_texts()] == ["LinearScheduler", "CosineAnnealingScheduler"]
    straight = ax.lines[0]
    assert straight.get_color() != ax.lines[2].get_color()  # between them stands the mark of the end
    assert list(straight.get_xdata()) == list(range(11))
    assert list(straight.get_ydata()) == [LinearScheduler().at(f"{t}ba", Horizon("10ba")) for t in range(11)]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("batches", "multiplier")
    ax.figure.canvas.draw()  # the legend stands below the axes, and the axes above it
    assert 0 < ax.get_legend().get_window_extent().y1 < ax.get_tightbbox().y1 and overlaps(ax) is False
    named = LinearScheduler().plot(Horizon("10ba"), "dur", label="a straight line", color="black").lines[0]
    assert (named.get_label(), named.get_color(), named.get_xdata()[-1]) == ("a straight line", "black", 1.0)
    pyplot.close("all")


@pytest.mark.parametrize(
    ("schedule", "length"),
    [
        (CosineAnnealingScheduler(), "1000ba"),
        (MultiStepScheduler(["30ep", "60ep"]), "75ep"),
        (LinearWithWarmupScheduler("0.01dur", t_max="90ep"), "90ep"),
        (LinearWithWarmupScheduler("10ba"), "100ba"),
        (SequenceScheduler([LinearScheduler(t_max="8ba"), LinearScheduler(t_max="8ba")], ["8ba"]), "10ba"),
    ],
)
def test_a_notebook_draws_a_schedule_on_a_run_that_suits_it(schedule, length):
    assert default_run(schedule) == Horizon(length)
    shown = schedule._repr_html_()
    picture = ElementTree.fromstring(shown[shown.index("<svg") : shown.index("<div>")])
    assert any("polyline" in each.tag for each in picture) and type(schedule).__name__ in shown
    assert f"<div>on a run of {default_run(schedule).max_duration}, presumed: .plot(Horizon(" in shown
    without = MultiStepScheduler(["30ep", "60ba"])._repr_html_()  # units of which there is no common run
    assert "<svg" not in without and "no picture: the times are in ep and ba" in without


def polyline(shown):
    """The points of the one line in what a notebook shows."""
    (found,) = re.findall(r'polyline points="([^"]*)"', shown)
    return [tuple(map(float, point.split(","))) for point in found.split()]


def test_a_notebook_shows_what_a_scheduler_does():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = optim.SGD(
        [{"params": [weight], "tags": "head"}, {"params": []}], lr=0.2, momentum=0.9, weight_decay=0.1
    )
    clock = Clock("4ba")
    bound = bind(LinearScheduler(), optimizer, clock, tags="head")
    clock.tick()
    assert repr(clock) == "<Clock at 1ba, 25.0% of Horizon('4ba')>"
    schedule = "LinearScheduler(alpha_i=1.0, alpha_f=0.0, t_max='1.0dur')"
    assert repr(bound) == f"<BoundLR of 'lr' in groups [0]: {schedule}, on {clock!r}>"
    shown = bound._repr_html_()
    assert html.escape(repr(bound)) in shown and "<div>on a run of 4ba</div>" in shown and ">0.2<" in shown
    assert polyline(shown)[0] == (62.0, 20.0) and polyline(shown)[-1] == (626.0, 200.0)
    decay = optim.weight_decay_scheduler.CosineDecayWD(optimizer, 0.1, 0.0, 100)
    decay.step()
    call = "CosineDecayWD(initial_val=0.1, end_val=0.0, total_iters=100)"
    assert repr(decay) == f"<CosineDecayWD of 'weight_decay' in groups [0, 1]: {call}, after 1 steps>"
    assert "<div>on a run of 100ba</div>" in decay._repr_html_() and len(polyline(decay._repr_html_())) > 50
    other = bind([lambda state: 0.5], optimizer, Clock("4ba"), "momentum")
    assert "<svg" not in other._repr_html_() and "no picture: Bound cannot be drawn" in other._repr_html_()


@pytest.mark.parametrize("length", ["0ba", "0ep"])
def test_a_run_that_was_stopped_at_once_is_drawn(length):
    state = SimpleNamespace(timestamp=Timestamp(), max_duration=length, dataloader_len=None)
    shown = bind(ConstantScheduler(), sgd(lr=0.2), state)._repr_html_()
    assert f"<div>on a run of {length}</div>" in shown and polyline(shown) == [(62.0, 20.0)]
    source = Source("", ConstantScheduler(0.2), Horizon.of(state))
    assert "0.2" in text([line(source)], 70)
    assert line(source, "dur").x == (0.0,)
    assert values_table([source], every="1" + length[1:]).rows == [(0, 0, 1.0)]


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_ticks_are_round_numbers_within(one, other):
    low, high = sorted((one, other))
    found = ticks(low, high)
    if high > low and high - low > 1e-9 * max(abs(low), abs(high)):
        assert 2 <= len(found) <= 7
        step = (found[-1] - found[0]) / (len(found) - 1)
        assert all(low - step * 1e-6 <= each <= high + step * 1e-6 for each in found)
        assert float(f"{step:.4e}".split("e")[0]) in (1.0, 2.0, 5.0)


def test_numbers_on_an_axis():
    numbers = {0.0: "0", 0.5: "0.5", 2000.0: "2000", 2e11: "2e11", 1e-4: "0.0001", 1e-7: "1e-7", -3.0: "-3"}
    assert {x: format_number(x) for x in numbers} == numbers
    assert [format_number(x) for x in (1234567.0, 3e23, 1.23456789)] == ["1234567", "3e23", "1.23457"]


def test_a_table_in_its_forms():
    table = values_table([Source("lr", LinearScheduler(), Horizon("4ba"), 0.1)], "2ba")
    rows = [(0, 0, 0.1), (0.5, 2, 0.05), (1, 4, 0.0)]
    assert table == Table(("dur", "ba", "lr"), rows)
    assert [tuple(map(float, row)) for row in list(csv.reader(io.StringIO(table.csv())))[1:]] == rows
    assert json.loads(table.json())[1] == {"dur": 0.5, "ba": 2, "lr": 0.05}
    cells = [each.text for each in ElementTree.fromstring(table._repr_html_()).iter("td")]
    assert cells == ["0", "0", "0.1", "0.5", "2", "0.05", "1", "4", "0"]


def test_several_lines_without_colours_are_letters_and_with_them_are_dots():
    lines = [line(Source(name, LinearScheduler(alpha_f=f), Horizon("9ba"))) for name, f in (("one", 0.0), ("two", 0.5))]
    plain, coloured = text(lines, 60), text(lines, 60, colours=True)
    assert "a one" in plain and "b two" in plain and "\x1b" not in plain
    assert "\x1b[34m" in coloured and "\x1b[33m" in coloured and not any(0x2800 < ord(each) <= 0x28FF for each in plain)
    assert all(f"\x1b[{code}m" in text(lines * 3, 60, colours=True) for code in (34, 33, 32, 35, 36, 31))


def test_a_picture_as_svg():
    """A line for each schedule in its colour, its name where there are several, the marks, and the ticks."""
    shares, run = {"one": 0.0, "<2>": 0.5}, Horizon("100ba")
    lines = [line(Source(name, LinearScheduler(alpha_f=f, t_max="50ba"), run)) for name, f in shares.items()]
    picture = ElementTree.fromstring(svg(lines))
    found = {kind: [each for each in picture if each.tag.endswith(kind)] for kind in ("polyline", "text", "path")}
    assert len({each.get("stroke") for each in found["polyline"]}) == 2
    first, last = (found["polyline"][0].get("points").split()[i] for i in (0, -1))
    assert (first, last) == ("62.0,20.0", "626.0,200.0")  # the corners within the margins
    texts = {each.text: (each.get("x"), each.get("y")) for each in found["text"]}
    assert texts["one"] == ("70", "34") and texts["<2>"] == ("70", "48") and texts["batches"] == ("344.0", "234")
    assert texts["end"] == ("344.0", "14") and texts["0.4"] == ("56", "132.0") and texts["40"] == ("287.6", "216")
    assert "M344.0 20V200" in [each.get("d") for each in found["path"]]
    alone = [each.text for each in ElementTree.fromstring(svg(lines[:1])) if each.tag.endswith("text")]
    assert "one" not in alone and "batches" in alone


# On the axes of matplotlib


def axes():
    return pytest.importorskip("matplotlib.figure").Figure(figsize=(7.0, 2.8)).add_subplot()


def names(ax):
    """The names of marks, with where they stand: the batch, and the height in points."""
    return [(text.get_text(), text.xy[0], text.get_position()[1]) for text in ax.texts]


def test_marks_on_axes():
    """One of two lines is named once; names that would overlap stand in two rows; a third is left out."""
    run = Horizon("1000ba")
    ax = PolynomialScheduler(1.0).plot(run, ax=axes())
    PolynomialScheduler(2.0).plot(run, ax=ax)
    assert names(ax) == [("end", 1000.0, 2)]
    twice = SequenceScheduler([WarmupStableDecayScheduler("0.1dur", t_max="0.5dur")] * 2, ["0.5dur"])
    found = [name for name in names(twice.plot(run, ax=axes())) if name[1] == 500.0]
    assert found == [("phase", 500.0, 2)]  # where the first one ends
    ax = MultiStepScheduler(["500ba", "510ba", "520ba"]).plot(run, ax=axes())
    assert names(ax) == [("milestone", 500.0, 2), ("milestone", 510.0, 12)]
    assert [line.get_xdata()[0] for line in ax.lines[1:]] == [500.0, 510.0, 520.0]


def test_numbers_of_tokens_are_written_in_full():
    ax = PolynomialScheduler(1.0).plot(Horizon("2e10tok"), ax=axes())
    assert [ax.xaxis.get_major_formatter()(x) for x in (0.0, 2.5e9, 1e10)] == ["0", "2.5e9", "1e10"]


def test_under_a_batch_size_schedule_shares_are_of_the_run_and_not_of_its_batches():
    """40,000 tokens: 10 batches of 1,000, then 15 of 2,000."""
    sizes = BatchSizeSchedule("0:10 100:20", unit="sp")
    run = Horizon("40000tok", samples_per_batch=sizes, tokens_per_sample=100)
    schedule = LinearScheduler()
    for every in ("10000tok", "0.25dur"):
        table = values_table([Source("l", schedule, run)], every)
        assert table.rows == [(k / 4, 10_000 * k, 1 - k / 4) for k in range(5)]
    drawn = line(Source("l", schedule, run), "dur")
    assert all(y == pytest.approx(1 - x, abs=1e-12) for x, y in zip(drawn.x, drawn.y))


def test_a_scheduler_of_unknown_length_needs_a_run_to_be_drawn():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = StepLR(optimizer, 0.1, 3, 0.5)
    with pytest.raises(ValueError, match="StepLR counts its own steps"):
        sources(scheduler)
    assert sources(scheduler, Horizon("20ba"))[0].horizon.max_duration == Time.from_batch(20)


def test_the_ratio_of_a_state_that_has_none():
    """`bind` gets it, and the picture and the units follow it."""
    state = SimpleNamespace(timestamp=Timestamp(), max_duration="50ba", dataloader_len=None)
    scheduler = bind(StepScheduler("20ba"), sgd(), state, ssr=0.5)
    assert [source.marks() for source in sources(scheduler)] == [[("period", 10)]]
    state.max_duration = "200ba"
    schedule = CosineAnnealingWithWarmupScheduler("10ba", t_max="100ba")  # too short if the ratio is 1
    assert bind(schedule, sgd(), state, ssr=2.0).units() == {TimeUnit.BATCH}
