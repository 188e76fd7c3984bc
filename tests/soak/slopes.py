"""Does a series of samples grow? Arithmetic alone: no clock, no file, no chance.

A series is a list of (seconds, value). The first quarter is warm-up. Of the rest the slope is Theil's and Sen's, the median
of the slopes between all pairs, which a few wild samples do not move; times the length it is what the line grew by. A
growth within the noise or within the tolerance is none.
"""
import statistics

WARM_UP = 0.25
LEAST_SAMPLES = 12  # after the warm-up; fewer say nothing


def slope(points):
    """Median of the slopes between all pairs, per second."""
    between = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1:] if x2 > x1]
    return statistics.median(between) if between else 0.0


def after_warm_up(points):
    if not points:
        return []
    first, last = points[0][0], points[-1][0]
    return [p for p in points if p[0] >= first + (last - first) * WARM_UP]


class Verdict:
    """growth: by how much it rose over the time that was looked at, as the slope and the halves both say; allowed: how
    much may be. judged: there were samples enough."""

    def __init__(self, points, relative, absolute):
        rest = after_warm_up(points)
        self.samples = len(rest)
        self.judged = self.samples >= LEAST_SAMPLES
        values = [v for _, v in rest]
        self.typical = statistics.median(values) if values else 0.0
        self.allowed = max(relative * self.typical, absolute)
        self.growth = 0.0
        if self.judged:
            half = len(rest) // 2
            by_slope = slope(rest) * (rest[-1][0] - rest[0][0])
            # Between the middles of the halves lies half of the time.
            by_halves = 2 * (statistics.median(values[half:]) - statistics.median(values[:half]))
            self.growth = max(0.0, min(by_slope, by_halves))
        self.per_hour = slope(rest) * 3600

    @property
    def flat(self):
        return self.growth <= self.allowed

    @property
    def share(self):
        """Of what is allowed."""
        return self.growth / self.allowed if self.allowed else float(self.growth > 0)
