"""Every setting of a run: the schema, its cross-field checks, loading and overrides."""

from mmcorl.config.schema import (
    OBJECTIVES,
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
    "OBJECTIVES",
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
