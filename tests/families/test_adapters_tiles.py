"""Views of an image, one or a grid of tiles with the whole, of all families that have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from adapter_passes import completions, each_family, load, logprobs_of, needs, noise, training_logprobs
from model_adapters.base import VisionSettings

SAMPLES = [
    ("How many?", [noise(56, 56)]),
    ("Sum?", []),
    ("Which?", [noise(190, 60, 1), noise(60, 300, 2)]),
    ("Why?", [noise(300, 200, 3)]),
]
VIEWS = {  # by the number of tiles allowed; a tile is 56 pixels wide
    "internvl3_5": {1: [1, 1, 1, 1], 4: [1, 4, 5, 5], 36: [1, 4, 6, 25]},
    # A base view and a grid for the only image of a prompt; 36 are as published, pooled as `anyres_max_9` says.
    "llava_onevision": {1: [2, 1, 1, 2], 4: [2, 1, 1, 5], 36: [2, 1, 1, 7]},
    # Up to 16 tokens of 28 x 28 fit one view, twice as many with LFM2's tolerance: 300 x 200 alone is larger.
    "lfm2_vl": {1: [1, 1, 1, 1], 2: [1, 1, 1, 3], 4: [1, 1, 1, 5], 17: [1, 1, 1, 7]},
    # The longer side is stretched to the grid's: 2 tiles up to 8 allowed, 4 from 16 on.
    "smolvlm": {1: [1, 1, 1, 1], 3: [1, 1, 1, 1], 4: [5, 3, 3, 5], 17: [17, 9, 5, 13]},
    "idefics3": {4: [5, 3, 3, 5]},
}


@each_family(*VIEWS, quick=2)
def test_views_split_and_compute_as_in_transformers(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    loaded = load(family, tiny_checkpoints[family])
    adapter, model = loaded.adapter, loaded.model
    counts, answers = [len(images) for _, images in SAMPLES], completions(loaded, [5] * len(SAMPLES))
    for tiles, views in VIEWS[family].items():
        vision = VisionSettings(tiles=tiles)
        processor = adapter.load_processor(tiny_checkpoints[family], vision)
        prompts = [adapter.encode(processor, text, images, vision=vision) for text, images in SAMPLES]
        collated = adapter.collate_vision([one.vision for one in prompts])
        assert next(collated[key] for key in ("num_views", "num_patches", "views") if key in collated).tolist() == views
        for back, one in zip(adapter.split_vision(collated, counts), prompts, strict=True):
            assert back.keys() == one.vision.keys()
            assert all(torch.equal(back[key], tensor) for key, tensor in one.vision.items())
        with torch.no_grad():
            ours = training_logprobs(loaded, prompts, list(enumerate(answers))).split(5)
            for (text, images), one, answer, got in zip(SAMPLES, prompts, answers, ours, strict=True):
                assert adapter.prompt_length(processor, text, images, vision=vision) == len(one.input_ids)
                inputs = adapter.plain_inputs(processor, text, images, vision)
                assert torch.equal(inputs["input_ids"][0], one.input_ids)
                ids = torch.cat([one.input_ids, answer])[None]
                logits = model(**{**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits[0, -6:-1]
                torch.testing.assert_close(got, logprobs_of(logits, answer), atol=1e-5, rtol=0)


@needs("lfm2_vl")  # transformers 4.57 builds no SmolVLM processor with torchvision
def test_a_saved_processor_has_the_tiles_that_were_trained(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoProcessor

    adapter = load("smolvlm", tiny_checkpoints["smolvlm"]).adapter
    for tiles, split, longest in ((1, False, 224), (5, True, 112)):
        adapter.load_processor(tiny_checkpoints["smolvlm"], VisionSettings(tiles=tiles)).save_pretrained(tmp_path)
        tool = AutoProcessor.from_pretrained(tmp_path).image_processor
        assert tool.do_image_splitting is split
        assert tool.size["longest_edge"] == longest
