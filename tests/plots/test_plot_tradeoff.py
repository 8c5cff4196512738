"""Accuracy against steps read, drawn."""

import rankcode as rc


def test_the_picture_of_a_trade_off_says_what_it_leaves_out():
    from rankcode.plots import plot_tradeoff

    def said(accuracy):
        few = (0.5, 0.9, 0.99)
        curve = rc.Curve(few, accuracy, (1.0, 4.0, 6.0), (0.1, 0.4, 0.6), (1.0,) * 3, None, 0.3, 0.5)
        return plot_tradeoff({"run": curve}).axes[0].get_title(loc="left")

    assert said((0.3, 0.8, 0.9)) == "further down: 1 with θ < 0.8" and said((0.8, 0.8, 0.9)) == ""
