"""Keys, tokens and passwords in a run's notes: `push --dry` refuses them; hashes, names and pictures pass."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
import string
from collections.abc import Callable

import yaml

from tests.drills.lab import Lab, Verdict, drills, problem

_NOISE = random.Random(7)
ALNUM, HEX, UPPER = string.ascii_letters + string.digits, "0123456789abcdef", string.ascii_uppercase + "234567"


def noise(length: int, letters: str = ALNUM) -> str:
    return "a1B"[: 3 if letters == ALNUM else 0] + "".join(_NOISE.choices(letters, k=length - 3 * (letters == ALNUM)))


def part(**fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


JWT = f"{part(alg='HS256', typ='JWT')}.{part(sub='1234567890', name='me')}.{noise(43)}"
SECRETS = {
    "OpenAI, legacy": f"sk-{noise(48)}",
    "OpenAI, project": f"sk-proj-{noise(80)}",
    "OpenAI, service": f"OPENAI_API_KEY='sk-svcacct-{noise(60)}'",
    "Anthropic": f"sk-ant-api03-{noise(93)}AA",
    "AWS id": f"AKIA7{noise(15, UPPER)}",
    "AWS session id": f"ASIA7{noise(15, UPPER)}",
    "AWS secret": f"aws_secret_access_key = {noise(40)}",
    **{f"GitHub gh{kind}_": f"gh{kind}_{noise(36)}" for kind in "pousr"},
    "GitHub fine-grained": f"github_pat_{noise(22)}_{noise(59)}",
    "W&B": f"WANDB_API_KEY={noise(40, HEX)}",
    "Slack bot": f"xoxb-{noise(12, '0123456789')}-{noise(24)}",
    "Slack hook": f"https://hooks.slack.com/services/T{noise(8)}/B{noise(8)}/{noise(24)}",
    "Google": f"AIza{noise(35)}",
    "Google client": f"GOCSPX-{noise(28)}",
    "GitLab": f"glpat-{noise(20)}",
    "Stripe": f"sk_live_{noise(24)}",
    "npm": f"npm_{noise(36)}",
    "PyPI": f"pypi-AgEIcHlwaS5vcmc{noise(60)}",
    "SendGrid": f"SG.{noise(22)}.{noise(43)}",
    "Databricks": f"dapi{noise(32, HEX)}",
    "Telegram": f"1234567890:AA{noise(33)}",
    "Azure": f"AccountName=me;AccountKey={noise(86)}==",
    "JSON web token": JWT,
    "PEM": "-----BEGIN RSA PRIVATE KEY-----",
    "OpenSSH": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "Bearer": f"curl -H 'Authorization: Bearer {noise(32)}' server",
    "password": "the server takes password=hunter2",
    "secret of a client": f"client_secret: {noise(24)}",
    "token in quotes": f'"token": "{noise(32)}"',
    "key in capitals": f"HF_TOKEN={noise(32)}",
    "key of Azure": f"api-key: {noise(32, HEX)}7a",
}
INNOCENT = f"""
{" ".join(hashlib.new(kind, b"weights").hexdigest() for kind in ("md5", "sha1", "sha256", "sha512"))}
uid: train/{noise(16, HEX)}; commit {noise(40, HEX)}; data:image/png;base64,{noise(60)}AKIA{noise(400)}
Qwen/Qwen2.5-VL-3B-Instruct; zoo:qwen2.5-vl@3; sk-learn-1.5-as-in-scikit-learn; task-0123-easy-problems-first
max_new_tokens: 1024; tokens_per_microbatch=16384; token-level truncation at 3.0; eos_token: <|im_end|>
stop tokens: 151643 and 151645; prompt tokens: 1,024; a token = 0.75 words; the password is asked for; secret: none
pad_token: '<|endoftext|>'; unk_token=[UNK]; api_key: null; OPENAI_API_KEY=$KEY; token: {{HF_TOKEN}}; password: ***
aggregation=token objective.clip_high=0.28; Bearer of bad news, the second of 2026; lr 1e-6, 1,920 labels recomputed
550e8400-e29b-41d4-a716-446655440000; mmcorl-grader 1.6; AKIA is how such keys begin; supervision.kind=token_truncate
"""
"""Thirty texts and more that are none."""


def pushed(text: str, refused: bool) -> Callable[[Lab], Verdict]:
    """A run whose notes hold a text."""

    def body(lab: Lab) -> Verdict:
        run = lab.folder() / "run"
        shutil.copytree(lab.reference, run, symlinks=True)
        os.chmod(run / "config.yaml", 0o644)
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump(config | {"notes": text}))
        argv = ("push", run, "--to", "org/name", "--dry", "--report")
        ended = lab.run(*argv)
        if wrong := problem(ended):
            return wrong
        if not refused:
            return Verdict("survived" if ended.code == 0 else "lost", ended.sentence)
        if ended.code == 0:
            return Verdict("silent", "published")
        told = ended.code == 2 and " line " in ended.sentence and "--allow-secrets" in ended.sentence
        if not told or text in ended.output or lab.run(*argv, "--allow-secrets").code:
            return Verdict("lost", ended.sentence)
        return Verdict("survived", ended.sentence)

    return body


DRILLS = drills(
    "secrets",
    [
        *((name, pushed(text, True)) for name, text in SECRETS.items()),
        ("innocent texts", pushed(INNOCENT, False)),
    ],
)
