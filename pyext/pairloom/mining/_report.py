"""What mining did with the candidates: `MiningReport`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MiningReport:
    """Counts over all queries; ``print`` shows them as a table.

    Every candidate is counted once: ``candidates == sum(removed.values()) + left_over + negatives``.
    """

    queries: int
    k: int
    range_min: int
    range_max: int
    positives: int
    """Different positives of all queries: they have no rank."""
    without_positive: int
    """Queries without a positive of finite score: margins remove nothing there."""
    skipped: int
    """Negatives of a rank below ``range_min``."""
    candidates: int
    """Negatives of a rank in the window."""
    removed: dict[str, int]
    """By each filter that was set, in the order of their use: a candidate counts where it was removed first."""
    left_over: int
    """Candidates that passed and were not needed."""
    negatives: int
    """What was returned."""
    with_fewer: int
    """Queries with 1 to k - 1 negatives."""
    with_none: int

    def __str__(self) -> str:
        window = f"ranks {self.range_min} to {self.range_max - 1} of what is not positive"
        rows: list[tuple[str, int, str]] = [
            ("queries", self.queries, ""),
            (f"  with {self.k} negatives", self.queries - self.with_fewer - self.with_none, ""),
            ("  with fewer", self.with_fewer, ""),
            ("  with none", self.with_none, ""),
            ("  without a positive", self.without_positive, "margins do not apply"),
            ("positives", self.positives, "left out before ranking"),
            ("skipped", self.skipped, f"ranks below {self.range_min}"),
            ("candidates", self.candidates, window),
            *((f"  removed by {name}", count, self._share(count)) for name, count in self.removed.items()),
            ("  passed, not needed", self.left_over, self._share(self.left_over)),
            ("  returned", self.negatives, self._share(self.negatives)),
        ]
        names = max(len(name) for name, _, _ in rows)
        counts = max(len(f"{count:,}") for _, count, _ in rows)
        return "\n".join(f"{name:{names}}  {count:>{counts},}  {note}".rstrip() for name, count, note in rows)

    def _share(self, count: int) -> str:
        return f"{count / self.candidates:.1%}" if self.candidates else ""
