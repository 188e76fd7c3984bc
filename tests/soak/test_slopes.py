#!/usr/bin/env python3
"""The arithmetic of scripts/soak load: what leaks is found, what is only noisy is not."""
import os
import random
import sys

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration")]
from rvdtest import main
from slopes import LEAST_SAMPLES, Verdict, slope

RSS = dict(relative=0.05, absolute=2048)  # KiB


def series(n, value, every=10.0):
    return [(i * every, float(value(i))) for i in range(n)]


def test_a_straight_line_has_its_slope_and_wild_samples_do_not_move_it():
    line = series(41, lambda i: 100 + 3 * i)
    assert abs(slope(line) - 0.3) < 1e-9
    wild = [(x, 10**6 if i % 5 == 2 else y) for i, (x, y) in enumerate(line)]
    assert abs(slope(wild) - 0.3) < 0.1, slope(wild)
    assert slope([]) == 0 and slope([(1.0, 5.0)]) == 0 and slope([(1.0, 5.0), (1.0, 9.0)]) == 0


def test_a_leak_is_found_through_noise():
    rng = random.Random(1)
    for _ in range(200):
        v = Verdict(series(60, lambda i: 40000 + 160 * i + rng.uniform(-2500, 2500)), **RSS)
        assert v.judged and not v.flat, (v.growth, v.allowed)
        assert 0.5 < v.per_hour / (160 * 360) < 1.5


def test_noise_without_a_leak_passes():
    rng = random.Random(2)
    for _ in range(200):
        v = Verdict(series(60, lambda i: 40000 + rng.gauss(0, 1000)), **RSS)
        assert v.judged and v.flat, (v.growth, v.allowed)


def test_what_grows_only_at_first_is_warm_up():
    v = Verdict(series(60, lambda i: 20000 + 2000 * min(i, 14)), **RSS)
    assert v.flat and v.growth == 0
    v = Verdict(series(60, lambda i: 20000 + 400 * i), **RSS)
    assert not v.flat


def test_what_falls_does_not_grow():
    assert Verdict(series(60, lambda i: 90000 - 500 * i), **RSS).growth == 0


def test_a_count_that_rises_by_one_now_and_then_is_found():
    leaking = Verdict(series(60, lambda i: 30 + i // 6), relative=0, absolute=3)
    assert not leaking.flat
    breathing = Verdict(series(60, lambda i: 30 + i % 4), relative=0, absolute=3)
    assert breathing.flat


def test_one_wild_sample_at_the_end_is_no_leak():
    v = Verdict(series(60, lambda i: 40000 + (10**6 if i == 59 else 0)), **RSS)
    assert v.flat, v.growth


def test_few_samples_say_nothing():
    n = LEAST_SAMPLES - 1
    v = Verdict(series(n, lambda i: 10**i), **RSS)
    assert not v.judged and v.flat
    assert not Verdict([], **RSS).judged


if __name__ == "__main__":
    main(globals())
