"""Debate: agents answer, read each other's answers and answer again; a verifier scores every answer.

MAPoRL (Park et al., 2025) rewards an answer with its own verifier score and, discounted, with the scores that all
agents reach after it; MARTI shapes a turn's score by those before it. MAPoRL trains with PPO: the value model it learns
beside the policies is left out here, and each call's reward becomes an advantage against the whole batch instead
(`objective.kind: reinforce_pp`), which needs no second model. Its policies of turn 1 and of later turns are one here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from mmcorl.config import EpisodeSettings
from mmcorl.interactions import prompts
from mmcorl.interactions.base import Call, Outcome, Talk, Workflow, ask
from mmcorl.rewards import shaped

Verifier = Callable[[Sequence[Call]], Sequence[float | None]]
"""How good each answer of a step is, in [0, 1]; None, which counts as 0, where that could not be read. See
mmcorl.interactions.verifiers."""
Scores = Sequence[Sequence[float]]
"""[T][N] of one conversation: s(t, a) of the answer of agent a in turn t, counted from 0."""
RIGHT, WRONG = 0.7, 0.3
"""For incentives an answer counts as right above the one and as wrong below the other (MAPoRL's code)."""


def debate(
    talks: Sequence[Talk], step: int, agents: int, settings: EpisodeSettings, seed: int, verifier: Verifier
) -> Workflow:
    """Every conversation of a step side by side, `settings.rounds` turns each."""
    turns: list[Sequence[Call]] = []
    for turn in range(1, settings.rounds + 1):
        asks = []
        for place, talk in enumerate(talks):
            last = turns[-1][place * agents : (place + 1) * agents] if turns else []
            for agent in range(agents):
                peers = [call for call in last if call.ask.agent != agent]
                noise = talk.random(seed, step, turn, f"references/{agent}")
                shown = [*last[agent : agent + 1], *noise.sample(peers, min(settings.references, len(peers)))]
                asks.append(ask(talk, turn, "solver", agent, prompts.debate, shown, limit=settings.shown_characters))
        turns.append((yield asks))
    calls = [call for said in turns for call in said]
    verified = {call.ask.prompt.uid: score for call, score in zip(calls, verifier(calls), strict=True)}
    rewards: dict[str, float] = {}
    for place in range(len(talks)):
        own = [[call.ask.prompt.uid for call in said[place * agents : (place + 1) * agents]] for said in turns]
        scores = [[verified[uid] or 0.0 for uid in row] for row in own]
        for t, row in enumerate(own):
            for a, uid in enumerate(row):
                rewards[uid] = mixed(scores, t, a, settings) + incentive(scores, t, a, settings.incentives)
    return Outcome(rewards, {uid: {"verified": score} for uid, score in verified.items()})


def mixed(scores: Scores, turn: int, agent: int, settings: EpisodeSettings) -> float:
    """R(t, a) as `settings.mix` says, with s_t the agent's own score and S_t the mean of all agents in turn t.

    With `share: own`, S_t is the agent's own score as well.

    `discounted`: (s_t + sum over later turns t' of gamma^(t' - t) S_t') / (1 + sum of these gamma^(t' - t)).
    `last`: S of the last turn. `current`: S_t.
    `quality`, `margin`: MARTI's shaping of s_t by the mean of S over earlier turns, from the second turn on, and plus
    `outcome` times the agent's own score in the last turn; see `mmcorl.rewards.shaped`.
    """
    own = [row[agent] for row in scores]
    common = [fmean(row) for row in scores] if settings.share == "all" else own
    if settings.mix == "discounted":
        weights = [settings.gamma**later for later in range(len(scores) - turn)]
        reached = [own[turn], *common[turn + 1 :]]
        return sum(weight * score for weight, score in zip(weights, reached, strict=True)) / sum(weights)
    if settings.mix == "last":
        return common[-1]
    if settings.mix == "current":
        return common[turn]
    if turn == 0:
        return own[0] + settings.outcome * own[-1]
    return shaped(own[turn], fmean(common[:turn]), settings.mix, settings.shaping, own[-1], settings.outcome)


def incentive(scores: Scores, turn: int, agent: int, alphas: Sequence[float]) -> float:
    """What is added to R(t, a) for changing one's mind, and for changing others': MAPoRL's alpha_0 to alpha_3.

    alpha_0 where the agent's answer turned right as the mean of the others was right before (it was persuaded), minus
    alpha_0 where it turned wrong as the others were wrong; alpha_1 and minus alpha_1 where it turned against them.
    alpha_3 where the mean of the others turns right in the next turn and the agent's answer was right (it persuaded),
    minus alpha_3 where they turn wrong and it was wrong; alpha_2 where they turn right although it was wrong, minus
    alpha_2 where they turn wrong although it was right. An agent alone has alpha_1 only.

    MAPoRL's code has the signs of alpha_2 and alpha_3 the other way round, so that persuading others of a right answer
    costs: give negative numbers for that.
    """
    earned = 0.0

    def state(turn: int, of: Sequence[int]) -> int:
        mean = fmean(scores[turn][one] for one in of)
        return (mean > RIGHT) - (mean < WRONG)

    peers = [one for one in range(len(scores[0])) if one != agent]
    if turn > 0:
        was, now = state(turn - 1, [agent]), state(turn, [agent])
        told = state(turn - 1, peers) if peers else -now
        if was == -now and now and told:
            earned += now * alphas[0 if told == now else 1]
    if turn + 1 < len(scores) and peers:
        before, after, mine = state(turn, peers), state(turn + 1, peers), state(turn, [agent])
        if before == -after and after and mine:
            earned += after * alphas[3 if mine == after else 2]
    return earned
