"""Every test of the client is watched for what it leaves behind."""

from __future__ import annotations

from helpers.leaks import no_leaks

__all__ = ["no_leaks"]
