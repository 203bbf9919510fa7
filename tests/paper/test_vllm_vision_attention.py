"""vLLM 0.11.2's own modules on a made-up CUDA device: what it does to Qwen2.5-VL's vision tower, and the cure.

The modules are the installed ones. Made up is what a CPU machine lacks: the compiled extension, the device, the
package `flash-attn` and vLLM's bundled kernel, which refuses head sizes as the real one does.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

import patches

patches.apply("torchvision_cpu")

NAME = "vllm_vision_attention"
FUNCTION = "maybe_get_vit_flash_attn_backend"
HEADDIM = "This flash attention build does not support headdim not being a multiple of 32."
# Compute capability of A100, H100 and B200, and what vLLM's platform picks for a head size of 80 on it.
DEVICES = {80: "XFORMERS", 90: "XFORMERS", 100: "TORCH_SDPA"}


def bundled_kernel(q: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    """vLLM's own kernel: it checks the head size before anything else."""
    if q.shape[-1] % 32:
        raise RuntimeError(HEADDIM)
    return q


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The modules in question, in a world of one process."""
    sys.modules.setdefault("vllm._C", ModuleType("vllm._C"))
    flash_attn = ModuleType("flash_attn")
    flash_attn.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    flash_attn.flash_attn_varlen_func = lambda q, *_, **__: q  # type: ignore[attr-defined]  # knows every head size
    sys.modules["flash_attn"] = flash_attn
    names = "attention.layer model_executor.models.vision model_executor.models.qwen2_5_vl attention.utils.fa_utils"
    names += " platforms.cuda distributed.parallel_state config"
    modules = [importlib.import_module(f"vllm.{name}") for name in names.split()]
    layer, vision, model, fa_utils, cuda, state, config = modules
    fa_utils.flash_attn_varlen_func = bundled_kernel
    # The engine's settings, which vLLM looks up while it builds layers.
    settings = config.VllmConfig(device_config=config.DeviceConfig(device="cpu"))
    with config.set_current_vllm_config(settings):
        state.init_distributed_environment(1, 0, f"file://{tmp_path_factory.mktemp('world')}/rendezvous", 0, "gloo")
        state.initialize_model_parallel()
        yield SimpleNamespace(layer=layer, vision=vision, model=model, cuda=cuda)
    state.destroy_model_parallel()
    state.destroy_distributed_environment()
    del sys.modules["flash_attn"], sys.modules["vllm._C"]


@pytest.fixture(params=DEVICES, ids=lambda capability: f"sm{capability}")
def device(request: pytest.FixtureRequest, vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A CUDA device with flash-attn installed, models in bfloat16, and vLLM as it was delivered."""
    from vllm.platforms.interface import DeviceCapability

    class Device(vllm.cuda.NonNvmlCudaPlatform):  # type: ignore[name-defined, misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(request.param // 10, request.param % 10)

        @classmethod
        def has_device_capability(cls, capability: int | tuple[int, int], device_id: int = 0) -> bool:
            wanted = capability if isinstance(capability, int) else capability[0] * 10 + capability[1]
            return request.param >= wanted

    for module in (vllm.layer, vllm.vision):
        monkeypatch.setattr(module, "current_platform", Device())
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    for module in (vllm.layer, vllm.model):  # given back after the test, so that every test starts without the cure
        monkeypatch.setattr(module, FUNCTION, getattr(module, FUNCTION))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield request.param
    torch.set_default_dtype(before)


def tower(vllm: SimpleNamespace, head: int, override: str | None) -> torch.nn.Module:
    """Qwen2.5-VL's vision transformer with one block of two heads."""
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

    shape = Qwen2_5_VLVisionConfig(
        depth=1, hidden_size=2 * head, num_heads=2, intermediate_size=64, out_hidden_size=64, fullatt_block_indexes=[0]
    )
    chosen = None if override is None else vllm.layer.AttentionBackendEnum[override]
    model = vllm.model.Qwen2_5_VisionTransformer(shape, attn_backend_override=chosen)
    for linear in (model.blocks[0].attn.qkv, model.blocks[0].attn.proj):
        linear.quant_method.apply = lambda layer, x, bias=None: torch.nn.functional.linear(x, layer.weight, bias)
        torch.nn.init.normal_(linear.weight, std=0.1)
        torch.nn.init.zeros_(linear.bias)
    return model


def attend(model: torch.nn.Module, hidden: int) -> torch.Tensor:
    """One block's attention over an image of six patches and one of four."""
    torch.manual_seed(0)
    ends = torch.tensor([0, 6, 10], dtype=torch.int32)
    x = torch.randn(10, 1, hidden)
    return model.blocks[0].attn(x, ends, None, torch.tensor(6), torch.tensor([6, 4]))  # type: ignore[index, union-attr]


def expected(model: torch.nn.Module, hidden: int) -> torch.Tensor:
    """The same by hand: softmax(q k / sqrt(d)) v per image and head, in float32."""
    torch.manual_seed(0)
    x = torch.randn(10, 1, hidden).float()[:, 0]
    attn = model.blocks[0].attn  # type: ignore[index, union-attr]
    q, k, v = (x @ attn.qkv.weight.float().T).view(10, 3, 2, hidden // 2).permute(1, 2, 0, 3)
    rows = []
    for image in (slice(0, 6), slice(6, 10)):
        weights = (q[:, image] @ k[:, image].transpose(1, 2) / (hidden // 2) ** 0.5).softmax(-1)
        rows.append((weights @ v[:, image]).transpose(0, 1).flatten(1))
    return (torch.cat(rows) @ attn.proj.weight.float().T)[:, None]


def backends(model: torch.nn.Module) -> tuple[str, str]:
    """What the transformer and its block believe they run on."""
    return model.attn_backend.name, model.blocks[0].attn.attn_backend.name  # type: ignore[union-attr, index]


def test_without_the_cure_head_size_80_dies_in_the_bundled_kernel(vllm: SimpleNamespace, device: int) -> None:
    """Also when the user chose another kernel: the choice is replaced, the flag of the right one is lost."""
    for override in (None, "TORCH_SDPA"):
        model = tower(vllm, 80, override)
        assert backends(model) == ("FLASH_ATTN", "FLASH_ATTN")
        assert model.blocks[0].attn.use_upstream_fa is False  # type: ignore[index, union-attr]
        with pytest.raises(RuntimeError, match=HEADDIM):
            attend(model, 160)


def test_with_the_cure_the_choice_of_platform_or_user_stands_and_attends(vllm: SimpleNamespace, device: int) -> None:
    assert [patches.apply(NAME)[0].state for _ in range(2)] == ["applied", "already"]
    assert backends(tower(vllm, 80, None)) == (DEVICES[device],) * 2
    model = tower(vllm, 80, "TORCH_SDPA")
    assert backends(model) == ("TORCH_SDPA", "TORCH_SDPA")
    # bfloat16 has 8 bits of mantissa; values are of order 1.
    torch.testing.assert_close(attend(model, 160).float(), expected(model, 160), atol=0.05, rtol=0.05)
    # What was not broken is as before: head size 128 on the bundled kernel, where the platform picks it.
    picked = "TORCH_SDPA" if device == 100 else "FLASH_ATTN"
    model = tower(vllm, 128, None)
    assert backends(model) == (picked, picked)
    attend(model, 256)


def test_silent_where_flash_attn_is_not_installed(
    vllm: SimpleNamespace, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    assert patches.apply(NAME)[0].state == "already"
    assert backends(tower(vllm, 80, None)) == (DEVICES[device],) * 2


def test_silent_without_a_cuda_device_and_waiting_without_vllm(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = getattr(vllm.layer, FUNCTION)
    assert patches.apply(NAME)[0].state == "already"
    assert getattr(vllm.layer, FUNCTION) is stock
    monkeypatch.delitem(sys.modules, "vllm")
    assert patches.apply(NAME)[0].state == "waiting"
