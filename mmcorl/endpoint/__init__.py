"""Models behind an OpenAI-compatible endpoint: asked patiently, never twice for what is known. No torch in here."""

from mmcorl.endpoint.breaker import Breaker, Stop
from mmcorl.endpoint.cache import ReplyCache
from mmcorl.endpoint.client import GREEDY, Content, Endpoint, Reply, Unanswered
from mmcorl.endpoint.loop import to_the_end
from mmcorl.endpoint.settings import EndpointSettings, with_options

__all__ = [
    "GREEDY",
    "Breaker",
    "Content",
    "Endpoint",
    "EndpointSettings",
    "Reply",
    "ReplyCache",
    "Stop",
    "Unanswered",
    "to_the_end",
    "with_options",
]
