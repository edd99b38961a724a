"""`pgtrunk ping`: whether a gateway answers, with which certificate, how quickly, and in how many round trips."""

from pgtrunk.ping.command import register

__all__ = ["register"]
