"""Which charts a report shows, from the records of a run and of the runs beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmcorl.report.svg import LARGE, Chart, Series, line_chart, stacked_chart
from mmcorl.run.reader import RunFiles, mapping, number

LABEL_METRICS = (
    (
        "pseudo_label_accuracy",
        "Pseudo-label accuracy",
        "How often the label an agent was trained on is the known answer.",
    ),
    (
        "sampled_accuracy",
        "Accuracy of the sampled completions",
        "On training prompts, at the sampling temperature.",
    ),
    ("reward_mean", "Reward, mean", "With labels, the share that matches them: agreement, not correctness."),
)
"""(metric, title, note) of the charts that also draw the other runs."""

GROUP_METRICS = (
    ("reward_std", "Reward, spread within a group", "Standard deviation."),
    ("zero_variance_share", "Groups with all-equal rewards", "No gradient, where only the group is compared."),
    ("vote_share", "Share of the majority answer", "1 means that all completions of a prompt agree."),
    ("tie_share", "Ties between answers", ""),
    ("unlabelled_share", "Prompts without a label", ""),
)
OPTIMIZER_METRICS = (
    ("entropy", "Entropy per token", ""),
    ("loss", "Loss", ""),
    ("grad_norm", "Gradient norm", "Before clipping."),
    ("clip_share", "Clipped tokens", "Share of tokens whose probability ratio was clipped."),
    ("importance_weight_mean", "Importance weight, mean", "Trained model against sampling engine."),
    ("importance_weight_max", "Importance weight, largest", "Trained model against sampling engine."),
    ("learning_rate", "Learning rate", ""),
)
SHARES = {"zero_variance_share", "vote_share"}
"""Drawn on the whole scale 0..1; the other shares are small and get a scale of their own."""
PHASES = ("rollout", "vote", "update", "evaluate", "checkpoint")


def agent_colours(runs: Sequence[RunFiles]) -> dict[str, int]:
    """One colour per agent name, the same in every run and every chart."""
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(run.agents))
    return {name: index for index, name in enumerate(names)}


def validation_charts(
    set_name: str, runs: Sequence[RunFiles], labels: Sequence[str], colours: Mapping[str, int]
) -> list[Chart]:
    """Accuracy and agreement on one validation set; the first run solid, the others dashed."""
    accuracy, agreement = [], []
    for index in range(len(runs) - 1, -1, -1):  # the run itself is drawn last, so that it lies on top
        run = runs[index]
        for agent in run.agents:
            points = run.validation_series(set_name, agent)
            accuracy.append(Series(agent, points, colours[agent], index, labels[index], strong=index == 0, marks=True))
        colour = len(colours) + index
        pairs = run.pairs(set_name) if index == 0 else []
        if len(pairs) > 1:
            for place, pair in enumerate(pairs):
                points = run.agreement_series(set_name, pair)
                agreement.append(Series(pair, points, colour + 1 + place, strong=False, marks=True))
        name = "all agents" if len(pairs) > 1 else "agreement"
        points = run.agreement_series(set_name)
        agreement.append(Series(name, points, colour, index, labels[index], strong=index == 0, marks=True))
    charts = [
        line_chart(
            f"Accuracy on {set_name}",
            accuracy,
            shares=True,
            frame=LARGE,
            note="Greedy answers against known answers.",
        ),
        line_chart(
            f"Agreement on {set_name}",
            agreement,
            shares=True,
            frame=LARGE,
            note="Share of prompts to which two agents give the same answer, right or wrong.",
        ),
    ]
    return [chart for chart in charts if chart]


def training_charts(
    runs: Sequence[RunFiles], labels: Sequence[str], colours: Mapping[str, int]
) -> tuple[list[Chart], list[str]]:
    """What happened on the training prompts, and sentences on numbers that never changed."""
    run, constant = runs[0], list[str]()
    charts = []
    for key, title, note in LABEL_METRICS:
        series = [
            Series(agent, runs[i].agent_series(agent, key), colours[agent], i, labels[i], strong=i == 0)
            for i in range(len(runs) - 1, -1, -1)
            for agent in runs[i].agents
        ]
        charts.append(line_chart(title, series, shares=True, note=note))
    series = [
        Series("agreement", runs[i].cohort_series(), len(colours) + i, i, labels[i], strong=i == 0)
        for i in range(len(runs) - 1, -1, -1)
    ]
    charts.append(
        line_chart(
            "Agreement of the votes",
            series,
            shares=True,
            note="On training prompts, between majority answers.",
        )
    )
    for key, title, note in GROUP_METRICS:
        charts.append(_one_metric(run, colours, key, title, note, constant))
    charts.append(_one_metric(run, colours, "completion_length", "Completion length", "Tokens.", constant))
    charts.append(_unusable(run, colours))
    charts.append(_step_time(run))
    return [chart for chart in charts if chart], constant


def optimizer_charts(run: RunFiles, colours: Mapping[str, int]) -> tuple[list[Chart], list[str]]:
    """The optimizer's own numbers, and sentences on those that never changed."""
    constant: list[str] = []
    charts = [_one_metric(run, colours, key, title, note, constant) for key, title, note in OPTIMIZER_METRICS]
    memory = [(r["step"], number(r.get("peak_rss_gb"))) for r in run.timings]
    points = [(step, value) for step, value in memory if value is not None]
    charts.append(line_chart("Peak memory of the process", [Series("GB", points, len(colours))], note="GB."))
    return [chart for chart in charts if chart], constant


def _one_metric(
    run: RunFiles, colours: Mapping[str, int], key: str, title: str, note: str, constant: list[str]
) -> Chart | None:
    """A chart of one metric of this run; a number that never changes becomes a sentence instead."""
    smooth = key != "learning_rate"
    series = [Series(agent, run.agent_series(agent, key), colours[agent], smooth=smooth) for agent in run.agents]
    values = {value for one in series for _, value in one.points}
    if len(values) == 1 and any(len(one.points) > 1 for one in series):
        constant.append(f"{title}: {values.pop():.4g} throughout.")
        return None
    return line_chart(title, series, shares=key in SHARES, note=note)


def _unusable(run: RunFiles, colours: Mapping[str, int]) -> Chart | None:
    series = []
    for agent in run.agents:
        for dash, (key, said) in enumerate((("unparsed_share", "unparsed"), ("cut_off_share", "cut off"))):
            points = run.agent_series(agent, key)
            series.append(Series(f"{agent} {said}", points, colours[agent], dash, strong=dash == 0))
    return line_chart(
        "Unparsed and cut-off completions",
        series,
        note="Unparsed: no answer found, so no vote and no reward. Cut off: ended by the length limit.",
    )


def _step_time(run: RunFiles) -> Chart | None:
    stacks, other = [], False
    for record in run.timings:
        seconds = mapping(record.get("seconds"))
        parts = [max(0.0, number(seconds.get(phase)) or 0.0) for phase in PHASES]
        total = number(seconds.get("total"))
        rest = max(0.0, total - sum(parts)) if total is not None else 0.0
        other = other or rest > 1e-3 * max(total or 0.0, 1e-9)
        stacks.append((int(record["step"]), [*parts, rest]))
    if not any(sum(values) for _, values in stacks):
        return None
    names = [*PHASES, "other"] if other else list(PHASES)
    stacks = [(step, values[: len(names)]) for step, values in stacks]
    return stacked_chart("Time per step", names, stacks, note="Seconds.")
