"""Every setting of a run: sections, cross-field checks, loading and overrides."""

from mmcorl.config import checks as checks
from mmcorl.config.load import changes_to_refuse, differences, dump, load, load_kept, parse, resolve, shipped
from mmcorl.config.schema import (
    AgentSettings,
    BenchmarkSet,
    Config,
    EngineSettings,
    EpisodeSettings,
    LoraSettings,
    ObjectiveSettings,
    ProfileSettings,
    TrainingSettings,
    VerifierSettings,
)

__all__ = [
    "AgentSettings",
    "BenchmarkSet",
    "Config",
    "EngineSettings",
    "EpisodeSettings",
    "LoraSettings",
    "ObjectiveSettings",
    "ProfileSettings",
    "TrainingSettings",
    "VerifierSettings",
    "changes_to_refuse",
    "differences",
    "dump",
    "load",
    "load_kept",
    "parse",
    "resolve",
    "shipped",
]
