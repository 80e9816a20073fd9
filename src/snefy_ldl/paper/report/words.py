"""Numbers in words: signs, intervals, durations."""

from __future__ import annotations

from snefy_ldl.paper.analysis import Gap

__all__ = ["duration", "gap_text", "signed"]


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign, and a true minus; the sign stays where it rounds to zero, for it says on which side.

    Examples:
        >>> signed(-0.01234), signed(0.5, 1), signed(-0.0001)
        ('−0.012', '+0.5', '−0.000')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


def gap_text(gap: Gap, digits: int = 3) -> str:
    """A difference with its interval in brackets."""
    if gap.low is None or gap.high is None:
        return signed(gap.mean, digits)
    return f"{signed(gap.mean, digits)} [{signed(gap.low, digits)}, {signed(gap.high, digits)}]"


def duration(seconds: float) -> str:
    """Seconds in words.

    Examples:
        >>> duration(42.4), duration(3700.0)
        ('42 s', '1 h 2 min')
    """
    if seconds < 100.0:
        return f"{seconds:.0f} s" if seconds >= 10.0 else f"{seconds:.1f} s"
    minutes = round(seconds / 60.0)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
