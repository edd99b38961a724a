"""The shows, by subject. Importing them puts them into the registry, in the order in which HELP has them."""

from pgtrunk_gateway.console.registry import SHOWS
from pgtrunk_gateway.console.shows import about

__all__ = ["SHOWS", "about"]
