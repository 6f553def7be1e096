"""Asynchronous SGD with parameter servers: throughput and staleness of N workers and M servers, from the profile of one."""

from paceline.prediction.asynchronous.profile import LayerProfile, Profile
from paceline.prediction.asynchronous.result import AsyncResult
from paceline.prediction.asynchronous.simulate import simulate

__all__ = ["AsyncResult", "LayerProfile", "Profile", "simulate"]
