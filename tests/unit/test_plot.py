"""The marks and the numbers on the axes of matplotlib."""

from matplotlib.figure import Figure

from timesched import Horizon, MultiStepScheduler, PolynomialScheduler, SequenceScheduler, WarmupStableDecayScheduler

RUN = Horizon("1000ba")


def axes():
    return Figure(figsize=(7.0, 2.8)).add_subplot()


def names(ax):
    """The names of marks, with where they stand: the batch, and the height in points."""
    return [(text.get_text(), text.xy[0], text.get_position()[1]) for text in ax.texts]


def test_a_mark_of_two_lines_is_named_once():
    ax = PolynomialScheduler(1.0).plot(RUN, ax=axes())
    PolynomialScheduler(2.0).plot(RUN, ax=ax)
    assert names(ax) == [("end", 1000.0, 2)]


def test_names_that_would_overlap_stand_in_two_rows():
    twice = SequenceScheduler([WarmupStableDecayScheduler("0.1dur", t_max="0.5dur")] * 2, ["0.5dur"])
    assert [name for name in names(twice.plot(RUN, ax=axes())) if name[1] == 500.0] == [
        ("end", 500.0, 2),
        ("phase", 500.0, 12),
    ]


def test_a_name_without_room_is_left_out_and_its_line_drawn():
    ax = MultiStepScheduler(["500ba", "510ba", "520ba"]).plot(RUN, ax=axes())
    assert names(ax) == [("milestone", 500.0, 2), ("milestone", 510.0, 12)]
    assert [line.get_xdata()[0] for line in ax.lines[1:]] == [500.0, 510.0, 520.0]


def test_numbers_of_tokens_are_written_in_full():
    ax = PolynomialScheduler(1.0).plot(Horizon("2e10tok"), ax=axes())
    assert [ax.xaxis.get_major_formatter()(x) for x in (0.0, 2.5e9, 1e10)] == ["0", "2.5e9", "1e10"]
