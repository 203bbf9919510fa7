"""`check-adapter --tiny`: any config made small, its fields consistent, and the contract on it without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapter_passes import assert_passed, each_family
from mmcorl.apps.doctor.adapter_checks import CHECKS as MORE
from mmcorl.cli.main import main
from model_adapters.base import AdapterError, Encoded, VisionSettings
from model_adapters.internvl3_5 import InternVL35Adapter
from model_adapters.registry import adapter_for
from model_adapters.testing.contract import CHECKS, TINY, check_adapter, check_tiny, require_sound_tiny
from model_adapters.testing.shapes import FULL
from model_adapters.testing.shrink import shrunk, small_config
from model_adapters.testing.tiny import FAMILIES, build_tiny

KINDS = ["sliding", "sliding", "sliding", "full"] * 3


def test_layers_are_the_first_and_last_of_each_kind_and_what_counts_them_follows() -> None:
    text = {
        "num_hidden_layers": 12,
        "layer_types": KINDS,
        "num_kv_shared_layers": 4,
        "first_k_dense_replace": 1,
        "per_layer_config": {"03": {"head_dim": 512}, "07": {"head_dim": 512}, "11": {"head_dim": 512}},
        "intermediate_size": [512] * 12,
        "max_window_layers": 12,
        "moe_layers": [*range(12)],
        "hidden_size": 512,
        "num_attention_heads": 8,
    }
    vision = {"depth": 24, "deepstack_visual_indexes": [5, 11, 17], "hidden_size": 64, "num_heads": 4}
    small, said = small_config({"text_config": text, "vision_config": vision}, [])
    # Kinds: 0 dense and sliding; 1, 6 sliding; 3, 7 full; 8, 10 sliding and 11 full with shared keys.
    assert small["text_config"] == {
        "num_hidden_layers": 8,
        "layer_types": [KINDS[layer] for layer in (0, 1, 3, 6, 7, 8, 10, 11)],
        "num_kv_shared_layers": 3,
        "first_k_dense_replace": 1,
        "per_layer_config": {"02": {"head_dim": 512}, "04": {"head_dim": 512}, "07": {"head_dim": 512}},
        # Two heads of 512 / 8 = 64 make a width of 128.
        "intermediate_size": [256] * 8,
        "max_window_layers": 8,
        "moe_layers": [*range(8)],
        "hidden_size": 128,
        "num_attention_heads": 2,
    }
    # Two layers without features for the decoder, two with: 0, 23 and 5, 17.
    assert (small["vision_config"]["depth"], small["vision_config"]["deepstack_visual_indexes"]) == (4, [1, 2])
    assert said == ["text_config: 12 -> 8 layers, width 512 -> 128", "vision_config: 24 -> 4 layers, width 64 -> 32"]


def test_widths_follow_each_other_and_the_size_of_a_head_stays() -> None:
    config = {
        "quantization_config": {"bits": 8},
        "projector_hidden_size": 2048,
        "vision_feature_layer": -5,
        "image_size": 1280,
        "text_config": {
            "num_hidden_layers": 3,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "intermediate_size": 11008,
            "vocab_size": 151936,
            "rope_parameters": {"mrope_section": [16, 24, 24]},
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "moe_intermediate_size": 1408,
            "initializer_range": 0.02,
        },
        # `embed_dim` is the tower's width where there are both, as in Qwen2-VL.
        "vision_config": {"depth": 4, "embed_dim": 1280, "hidden_size": 2048, "num_heads": 16},
    }
    small, _ = small_config(config, [])
    text = small["text_config"]
    # 2048 / 16 = 128 per head, which the sections share: 2 * (16 + 24 + 24).
    assert (text["hidden_size"], text["num_attention_heads"], text["num_key_value_heads"]) == (256, 2, 1)
    assert (text["intermediate_size"], text["moe_intermediate_size"]) == (512, 512)
    assert (text["num_experts"], text["num_experts_per_tok"], text["n_group"], text["topk_group"]) == (4, 2, 1, 1)
    assert (text["vocab_size"], text["rope_parameters"]) == (151936, {"mrope_section": [16, 24, 24]})
    assert text["initializer_range"] == pytest.approx(0.05)  # 0.8 / sqrt(256)
    assert small["vision_config"] == {"depth": 2, "embed_dim": 160, "hidden_size": 256, "num_heads": 2}
    assert (small["projector_hidden_size"], small["image_size"]) == (256, 1280)
    assert small["vision_feature_layer"] == -2
    assert "quantization_config" not in small
    kept, said = small_config(config, ["text_config", "vision_config"])
    assert kept["text_config"]["hidden_size"] == 2048
    assert said[0] == "text_config: 3 -> 2 layers, width as it is"


@each_family("qwen3_vl", *(name for name in FAMILIES if name != "qwen3_vl"))
def test_every_family_keeps_the_contract_without_weights(family: str, tmp_path: Path) -> None:
    full = {**FULL[family].settings(), "image_size": 224} if family in FULL else {"hidden": 512, "layers": 9}
    path = build_tiny(family, tmp_path / family, weights=False, **full | {"mm_tokens_per_image": None})
    said, checks = check_tiny(path, more=MORE)
    assert [check.name for check in checks] == [*CHECKS, *MORE]
    assert_passed(checks)
    assert any(f" -> {count} layers" in said for count in (2, 3, 4, 6))
    assert ("vision_config: as it is" in said) == (family in ("perception_lm", "gemma4_unified"))  # timm's, and none


def test_the_command_needs_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = build_tiny("internvl3_5", tmp_path / "model", weights=False)
    assert main(["check-adapter", str(path)]) == 2
    capsys.readouterr()
    assert main(["check-adapter", str(path), "--tiny", "vision.tiles=3", "--json"]) == 0
    output, errors = capsys.readouterr()
    assert [check["name"] for check in json.loads(output)] == [*CHECKS, *MORE]
    assert errors.splitlines()[-1].startswith("random weights, ")
    assert main(["check-adapter", str(path), "--tiny", "vision.tils=3"]) == 2
    assert "did you mean 'vision.tiles'" in capsys.readouterr().err


def test_the_small_checkpoint_is_kept_and_loads_as_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build_tiny("internvl3_5", tmp_path / "model", weights=False)
    kept = tmp_path / "kept"
    assert main(["check-adapter", str(path), "--save", str(kept)]) == 2
    assert "add --tiny" in capsys.readouterr().err
    assert main(["check-adapter", str(path), "--tiny", "--save", str(kept), "--json"]) == 0
    small = json.loads(capsys.readouterr().out)
    again = check_adapter(kept, tolerance=TINY, more=MORE)
    assert [check.detail for check in again] == [check["detail"] for check in small]  # the weights that were checked
    assert main(["check-adapter", str(path), "--tiny", "--save", str(kept)]) == 2
    assert "exists already" in capsys.readouterr().err


class RefusesAll(InternVL35Adapter):
    def encode(self, processor: Any, *args: Any, **options: Any) -> Encoded:
        raise AdapterError(f"{processor.tokenizer.name_or_path} is refused")


def test_messages_name_the_folder_that_was_given(tmp_path: Path) -> None:
    path = build_tiny("internvl3_5", tmp_path / "model", weights=False)
    _, checks = check_tiny(path, f"{__name__}:RefusesAll")
    assert checks[0].detail.startswith(f"AdapterError: {path} is refused (")
    with pytest.raises(AdapterError, match=f"{path} is refused .*check-adapter {path} --tiny --adapter .* passes"):
        require_sound_tiny(RefusesAll(), str(path), VisionSettings(), {})


def test_a_config_that_cannot_run_small_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = build_tiny("qwen2_5_vl", tmp_path / "model", weights=False)
    config = json.loads((path / "config.json").read_text())
    config["vision_config"]["spatial_merge_size"] = 3  # not what the processor makes of images
    (path / "config.json").write_text(json.dumps(config))
    adapter = adapter_for(path)
    with (
        pytest.raises(AdapterError, match=r"has no small version that runs \(.*\): check the checkpoint itself"),
        shrunk(path, adapter, VisionSettings()),
    ):
        pass
