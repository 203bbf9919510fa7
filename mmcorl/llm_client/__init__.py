"""Models behind an OpenAI-compatible endpoint: asked patiently, never twice for what is known. No torch in here."""

from mmcorl.llm_client.breaker import Breaker, Stop
from mmcorl.llm_client.cache import ReplyCache
from mmcorl.llm_client.client import GREEDY, Content, Endpoint, Reply, Unanswered
from mmcorl.llm_client.loop import to_the_end
from mmcorl.llm_client.settings import EndpointSettings, with_options

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
