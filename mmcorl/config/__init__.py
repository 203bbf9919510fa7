"""Every setting of a run: the schema, its cross-field checks, loading and overrides."""

from mmcorl.config.schema import (
    AgentSettings,
    BenchmarkSet,
    Config,
    EngineSettings,
    EpisodeSettings,
    ObjectiveSettings,
    ProfileSettings,
    TrainingSettings,
    VerifierSettings,
    changes_to_refuse,
    differences,
    dump,
    load,
    parse,
)

__all__ = [
    "AgentSettings",
    "BenchmarkSet",
    "Config",
    "EngineSettings",
    "EpisodeSettings",
    "ObjectiveSettings",
    "ProfileSettings",
    "TrainingSettings",
    "VerifierSettings",
    "changes_to_refuse",
    "differences",
    "dump",
    "load",
    "parse",
]
