"""Latencies as arrays: an hdrhistogram's counts, added, and asked for percentiles and shares.

hdrhistogram's own iterators walk over each of some 18,000 buckets in Python; a report asks hundreds of them.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from hdrh.codec import HdrCookieException, HdrHistogramSettingsException, HdrLengthException
from hdrh.histogram import HdrHistogram

__all__ = ["Latencies"]

_Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """How often each latency was met; ``values`` rise, and are microseconds."""

    values: _Array
    counts: _Array

    @classmethod
    def decode(cls, encoded: str) -> Latencies:
        """From the text of a histogram's log. Raises ValueError for a text that is none."""
        try:
            histogram = HdrHistogram.decode(encoded)
        except (HdrCookieException, HdrHistogramSettingsException, HdrLengthException, zlib.error) as error:
            raise ValueError(str(error)) from error
        counts = np.array(histogram.counts, dtype=np.int64)
        met = np.flatnonzero(counts)
        shape = (histogram.unit_magnitude, histogram.sub_bucket_half_count, histogram.sub_bucket_half_count_magnitude)
        return cls(_highest(*shape, len(counts))[met], counts[met])

    def __add__(self, other: Latencies) -> Latencies:
        values, places = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.bincount(places, weights=np.concatenate([self.counts, other.counts])).astype(np.int64)
        return Latencies(values, counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def at(self, percentiles: list[float]) -> list[float]:
        """Milliseconds at these percentiles; nothing where nothing was met."""
        if not self.total:
            return []
        wanted = np.maximum(np.array(percentiles) / 100 * self.total, 1) - 1e-9
        places = np.searchsorted(np.cumsum(self.counts), wanted)
        return [float(each) / 1000 for each in self.values[np.minimum(places, len(self.values) - 1)]]

    def above(self, milliseconds: float) -> int:
        """How many took longer."""
        return int(self.counts[self.values > milliseconds * 1000].sum())


@functools.cache
def _highest(magnitude: int, half: int, bits: int, buckets: int) -> _Array:
    """The largest value that each bucket stands for, as hdrhistogram itself answers with."""
    index = np.arange(buckets)
    bucket = (index >> bits) - 1
    sub = (index & (half - 1)) + half
    low = bucket < 0
    bucket, sub = np.where(low, 0, bucket), np.where(low, sub - half, sub)
    exponent = bucket + magnitude
    return (sub.astype(np.int64) << exponent) + (np.int64(1) << exponent) - 1
