"""vLLM inside the worker's process: rollouts of large models, with weights of its own that follow the trainer's.

One request per prompt asks for all of its samples, so that vLLM reads the prompt and its images once. vLLM works
on images and chat placeholders itself; that it ends with our prompt ids is asserted at every request, because
everything the trainer computes starts from them. Log-probabilities are those of the distribution sampled from:
after the ban of media tokens, the temperature and the filters.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import patches
from mmcorl.config import EngineSettings
from mmcorl.config.install_hints import install_vllm
from mmcorl.engines.base import Sample, Sampling, Weights
from mmcorl.engines.weight_check import check_weights, fingerprints
from mmcorl.errors import RunError, UserError
from mmcorl.policy.policy import Policy
from mmcorl.system import scratch_dirs
from model_adapters.base import Encoded, VisionSettings

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput, RequestOutput

BAN = -100.0
"""Bias of a banned token, the strongest vLLM takes; at `HOTTEST` still e^-50, which is no probability to speak of."""
HOTTEST = 2.0
"""The highest temperature vLLM takes."""
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Most ranks of low-rank adapters that vLLM can be told."""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Sync:
    """What one weight sync moved."""

    tensors: int
    bytes: int
    """As given by the trainer, before any change of dtype."""
    seconds: float


class VllmEngine:
    """Samples with vLLM, in this process, on one device.

    Args:
        policy: the policy being trained, for its adapter, processor, stop and banned ids; its weights are not read.
        name: the agent, for messages.
        path: checkpoint folder or hub id that vLLM loads: the weights training starts from.
        vision: how images reach the model.
        settings: the `engine` section of a config.
        dtype: `fp32`, `bf16` or `fp16`.
        max_model_len: most tokens of a prompt and its completion.
        dumps: folder for requests that vLLM could not answer with numbers; by default that of temporary files.
        device: where vLLM computes; by default where the policy does.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        name: str,
        path: str,
        vision: VisionSettings,
        settings: EngineSettings,
        dtype: str,
        max_model_len: int,
        dumps: Path | None = None,
        device: torch.device | None = None,
    ):
        device = device or policy.device
        self.policy, self.name, self.max_model_len = policy, name, max_model_len
        self.dumps = dumps or Path(tempfile.gettempdir())
        self.last_sync: Sync | None = None
        lora = unmerged(policy)
        self.adapters = lora is not None
        self._lora: LoRARequest | None = None
        self._asleep: set[str] = set()
        self._dropped = False
        self.device_type, cuda = device.type, device.type == "cuda"
        self._sleeps = cuda and settings.sleep
        _prepare(device)
        options: dict[str, Any] = {
            "model": path,
            "dtype": _DTYPES[dtype],
            "max_model_len": max_model_len,
            "max_num_seqs": settings.max_rows,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "enforce_eager": settings.enforce_eager or not cuda,
            "enable_sleep_mode": self._sleeps,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "enable_prefix_caching": True,
            # Every image is in one request per step, so a cache of processed ones would only hold memory.
            "mm_processor_cache_gb": 0,
            "use_tqdm_on_load": False,
            **policy.adapter.engine_options(vision),
        }
        if policy.adapter.multimodal:
            # Otherwise vLLM sets memory aside for the longest video it could be given.
            options["limit_mm_per_prompt"] = {"video": 0, **options.get("limit_mm_per_prompt", {})}
        if settings.kv_cache_gib is not None or not cuda:
            options["kv_cache_memory_bytes"] = int((settings.kv_cache_gib or 1) * 2**30)
        if not cuda:
            options["block_size"] = 32  # the smallest there is; prompts shorter than a block are not shared
        if lora is not None:
            options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _slots(lora.r)}
            self._adapter_folder = tempfile.TemporaryDirectory(prefix=f"{scratch_dirs.prefix(os.getpid())}{name}-")
            lora.save_pretrained(self._adapter_folder.name)
        self.llm = _start(options, name)

    # -- sampling --------------------------------------------------------------------------------------------

    def generate(self, prompts: Sequence[Encoded], n: int, sampling: Sampling, seed: int) -> list[list[Sample]]:
        """n samples of each prompt, in order; the noise of each depends on seed, prompt number and sample number.

        Raises RunError where vLLM reads a prompt differently or answers with what are not numbers.
        """
        if self._asleep:
            raise RuntimeError(f"agent {self.name!r}: generate before wake, {sorted(self._asleep)} are asleep")
        for number, prompt in enumerate(prompts):
            if (length := len(prompt.input_ids) + sampling.max_new_tokens) > self.max_model_len:
                raise RunError(
                    f"agent {self.name!r}: prompt {number} and its completion may have {length} tokens, above "
                    f"engine.max_model_len {self.max_model_len}: raise it, or leave it out to fit the run"
                )
        require_temperature(sampling.temperature)
        # The trainer samples under autocast; vLLM's arithmetic is its own.
        with torch.autocast(self.device_type, enabled=False), _quiet():
            outputs = self.llm.generate(
                [self._request(prompt) for prompt in prompts],
                [self._params(n, sampling, _seed(seed, number)) for number in range(len(prompts))],
                use_tqdm=False,
                lora_request=self._lora,
            )
        results = []
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            self._same_prompt(number, prompt, output)
            own = [self._sample(number, prompt, one, sampling, seed) for one in output.outputs]
            results.append(own if sampling.temperature else own * n)
        return results

    def _request(self, prompt: Encoded) -> Any:
        if not prompt.images:
            return {"prompt_token_ids": prompt.input_ids.tolist()}
        ids = self.policy.adapter.unexpanded(self.policy.processor, prompt)
        return {"prompt_token_ids": ids, "multi_modal_data": {"image": list(prompt.images)}}

    def _params(self, n: int, sampling: Sampling, seed: int) -> SamplingParams:
        from vllm import SamplingParams

        greedy = sampling.temperature == 0
        return SamplingParams(
            n=1 if greedy else n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_new_tokens,
            seed=None if greedy else seed,
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            # Exactly the policy's stops: vLLM would add those it finds in the checkpoint.
            stop_token_ids=list(self.policy.stop_ids),
            ignore_eos=True,
            logit_bias=dict.fromkeys(self.policy.banned.tolist(), BAN) or None,
            detokenize=False,
        )

    def _same_prompt(self, number: int, prompt: Encoded, output: RequestOutput) -> None:
        ours, theirs = prompt.input_ids.tolist(), list(output.prompt_token_ids or [])
        if ours == theirs:
            return
        place = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        place = min(len(ours), len(theirs)) if place is None else place
        raise RunError(
            f"agent {self.name!r}: vLLM reads prompt {number} ({self._words(prompt)!r}) as {len(theirs)} tokens and "
            f"the trainer as {len(ours)}, first different at position {place}: images or template are treated in two "
            "ways, so compare the adapter's engine_options with its processor, or use engine.kind=transformers"
        )

    def _sample(self, number: int, prompt: Encoded, output: CompletionOutput, sampling: Sampling, seed: int) -> Sample:
        ids = list(output.token_ids)
        told: Any = output.logprobs
        if told is None or list(told.token_ids) != ids:
            raise RuntimeError(f"agent {self.name!r}: vLLM's log-probabilities are not those of the sampled tokens")
        logprobs = torch.tensor(told.logprobs, dtype=torch.float32)
        if not bool(logprobs.isfinite().all()):
            place = int((~logprobs.isfinite()).nonzero()[0])
            file = self._dump(number, prompt, sampling, seed, ids, told.logprobs)
            raise RunError(
                f"agent {self.name!r}: vLLM gives token {place} of a completion of prompt {number} "
                f"({self._words(prompt)!r}) the log-probability {told.logprobs[place]}, so its weights or its "
                f"arithmetic are broken: the request is in {file}; go back to an earlier checkpoint"
            )
        if (forbidden := torch.isin(torch.tensor(ids), self.policy.banned.cpu())).any():
            token = ids[int(forbidden.nonzero()[0])]
            raise RunError(
                f"agent {self.name!r}: vLLM sampled token {token}, which is banned, for prompt {number} "
                f"({self._words(prompt)!r}): its logits are beyond any bias, so go back to an earlier checkpoint"
            )
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"agent {self.name!r}: vLLM ended prompt {number} with {output.finish_reason!r}")
        return Sample(
            torch.tensor(ids, dtype=torch.long), logprobs, "stop" if output.finish_reason == "stop" else "length"
        )

    def _words(self, prompt: Encoded) -> str:
        text = " ".join(self.policy.adapter.decode(self.policy.processor, prompt.input_ids.tolist()).split())
        return text if len(text) <= 60 else f"...{text[-57:]}"

    def _dump(
        self, number: int, prompt: Encoded, sampling: Sampling, seed: int, ids: Sequence[int], logprobs: Sequence[float]
    ) -> Path:
        """Write down a request that went wrong, with its images beside it."""
        folder = Path(tempfile.mkdtemp(prefix=f"request-{self.name}-", dir=self.dumps))
        for index, image in enumerate(prompt.images):
            image.save(folder / f"image_{index}.png")
        told = {
            "agent": self.name,
            "prompt": number,
            "prompt_ids": prompt.input_ids.tolist(),
            "text": prompt.chat or self._words(prompt),
            "sampling": asdict(sampling),
            "seed": seed,
            "completion_ids": list(ids),
            "logprobs": [repr(value) for value in logprobs],
        }
        (folder / "request.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
        return folder / "request.json"

    # -- weights ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over these weights in place, as they come; what is not given stays.

        What vLLM computes with one matrix must come together: of the q, k and v projections of a layer, or of its
        gate and up, all or none. Raises RunError otherwise. Caches of what older weights computed are emptied.
        Low-rank adapters (`adapters`) come under peft's names, all of them, and are laid over weights that stay.
        """
        if "weights" in self._asleep:
            self.llm.wake_up(tags=["weights"])
            self._asleep.discard("weights")
        started = time.perf_counter()
        stream = _Counted(weights)
        try:
            with _quiet():
                self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(stream)})
                if stream.adapters:
                    self._lay_over(stream.adapters)
        except (ValueError, KeyError) as error:
            raise RunError(
                f"agent {self.name!r}: vLLM cannot place the weight {stream.last!r} ({_first_line(error)}), and holds "
                "now some old and some new ones: its class names layers differently, so use engine.kind=transformers"
            ) from error
        self._whole_matrices(stream.names)
        self._pack_tied()
        self._forget()
        self._dropped = False
        self.last_sync = Sync(len(stream.names), stream.bytes, time.perf_counter() - started)

    def check(self, weights: Weights) -> None:
        """Raise RunError unless vLLM computes with exactly these, all weights of the trainer; see `fingerprints`."""
        if "weights" in self._asleep:
            raise RuntimeError(f"agent {self.name!r}: weights are asleep, wake or sync before the check")
        check_weights(self, weights)

    def fingerprints(self) -> dict[str, Tensor]:
        """Of the parameters that vLLM computes with."""
        return fingerprints(self.model)

    def _lay_over(self, adapters: Mapping[str, Tensor]) -> None:
        """vLLM reads adapters from a folder as peft writes it."""
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        folder = self._adapter_folder.name
        tensors = {
            f"base_model.model.{name.replace('.default.', '.')}": tensor.to("cpu").contiguous()
            for name, tensor in adapters.items()
        }
        save_file(tensors, Path(folder) / "adapter_model.safetensors")
        self.llm.llm_engine.add_lora(LoRARequest(self.name, 1, folder, load_inplace=True))
        self._lora = LoRARequest(self.name, 1, folder)  # requests of this one do not read the folder again

    def _whole_matrices(self, given: set[str]) -> None:
        """vLLM fills a joined matrix anew, so a part that was not given would be left without values."""
        joined = {
            part: (whole, parts)
            for whole, parts in getattr(self.model, "packed_modules_mapping", {}).items()
            for part in parts
            if len(parts) > 1
        }
        tails = {tuple(name.split(".")[-2:]) for name, _ in self.model.named_modules()}
        for name in given:
            *parents, part, kind = name.split(".")
            if part not in joined or kind != "weight" or not parents:
                continue
            whole, parts = joined[part]
            if (parents[-1], whole) not in tails or (parents[-1], part) in tails:
                continue  # kept apart in this module
            siblings = [".".join([*parents, one, kind]) for one in parts]
            if missing := [one for one in siblings if one not in given]:
                raise RunError(
                    f"agent {self.name!r}: the weights {name} came without {missing[0]}, which vLLM keeps in one "
                    "matrix with them: give all of its parts at every sync"
                )

    def _pack_tied(self) -> None:
        """Pack again what vLLM packs on a CPU from a table that it got under another name: a tied head.

        vLLM 0.32 leaves the packed copy as it was, and goes on sampling with the head before the update.
        """
        for module in self.model.modules():
            if hasattr(module, "cpu_linear") and module.weight.numel():
                module.quant_method.process_weights_after_loading(module)

    def _forget(self) -> None:
        """Empty the caches of states and image features. All three: the scheduler counts on what workers hold."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError(f"agent {self.name!r}: vLLM keeps states that older weights computed")
        self.llm.llm_engine.reset_mm_cache()
        self.llm.llm_engine.reset_encoder_cache()

    @property
    def model(self) -> Any:
        """vLLM's own model: it lives in this process."""
        executor: Any = self.llm.llm_engine.model_executor
        return executor.driver_worker.model_runner.get_model()

    # -- memory ----------------------------------------------------------------------------------------------

    def sleep(self, until_sync: bool = False) -> None:
        """Free GPU memory; on a CPU there is nothing to free.

        With `until_sync` the weights are dropped, because a sync of all of them comes before the next `wake`;
        otherwise they wait in CPU memory.
        """
        if not self._sleeps or self._asleep:
            return
        self.llm.sleep(level=2 if until_sync else 1)
        self._asleep, self._dropped = {"weights", "kv_cache"}, until_sync

    def wake(self) -> None:
        """Take back what `sleep` freed."""
        if self._dropped:
            raise RuntimeError(f"agent {self.name!r}: wake before the sync that sleep(until_sync=True) announced")
        if self._asleep:
            self.llm.wake_up(tags=sorted(self._asleep, reverse=True))  # weights before the cache
            self._asleep = set()


def require_temperature(temperature: float) -> None:
    """Raises UserError for one that vLLM does not take."""
    if temperature > HOTTEST:
        raise UserError(
            f"the temperature is {temperature:g}, but vLLM takes {HOTTEST:g} at most: lower it, or use "
            "engine.kind=transformers"
        )


class _Counted:
    """Weights on their way, with what has passed."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]]):
        self.weights = weights
        self.names: set[str] = set()
        self.bytes = 0
        self.last = ""
        self.adapters: dict[str, Tensor] = {}
        """Low-rank adapters, which are held back."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.weights:
            self.last = name
            self.names.add(name)
            self.bytes += tensor.nbytes
            if ".lora_" in name:
                self.adapters[name] = tensor.detach()
            else:
                yield name, tensor.detach()


def unmerged(policy: Policy) -> Any:
    """peft's config where vLLM can keep the low-rank adapters beside the weights, else None: then they come merged.

    Merged weights are rounded to the engine's dtype, which may swallow what adapters add. But vLLM 0.32 knows
    adapters only in the language model, and in towers of some families by an experiment that fails for others.
    """
    configs = getattr(policy.model, "peft_config", None)
    if not configs or configs["default"].r > _RANKS[-1]:
        return None
    decoder = {id(parameter) for parameter in policy.adapter.decoder(policy.model).parameters()}
    trained = [item for item in policy.model.named_parameters() if item[1].requires_grad]
    fits = all(id(parameter) in decoder and (".lora_A." in name or ".lora_B." in name) for name, parameter in trained)
    return configs["default"] if fits else None


def _slots(rank: int) -> int:
    """The rank vLLM makes room for: one of a few."""
    return next(room for room in _RANKS if room >= rank)


def require_installed() -> None:
    """Raise UserError where there is no vLLM; does not import it, which takes seconds."""
    try:
        found = importlib.util.find_spec("vllm") is not None
    except ValueError:  # imported already, or hidden, by a module without a spec
        found = sys.modules["vllm"] is not None
    if not found:
        raise UserError(
            f"engine.kind is 'vllm', which is not installed: {install_vllm(torch.cuda.is_available())}, or use "
            "engine.kind=transformers"
        )


def _prepare(device: torch.device) -> None:
    """Import vLLM as this process needs it; raises UserError where it is missing or built for other hardware."""
    require_installed()
    patches.apply(*patches.BEFORE_VLLM)
    # Read when an engine is made: the engine core in this process, no binding of threads, no chatter.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.platforms import current_platform

    if current_platform.device_type != device.type:
        raise UserError(
            f"the installed vLLM is built for {current_platform.device_type or 'no hardware found here'} but this run "
            f"is on {device.type}: {install_vllm(device.type == 'cuda')} in an environment of its own, or use "
            "engine.kind=transformers"
        )
    if device.type == "cuda" and device.index:
        raise UserError(
            f"engine.kind is 'vllm', which uses the first GPU it sees, but device is {str(device)!r}: set "
            f"CUDA_VISIBLE_DEVICES={device.index} and device=cuda"
        )


def _start(options: Mapping[str, Any], name: str) -> LLM:
    """An engine, made so that the process around it stays as it was."""
    from vllm import LLM

    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    python, numpy = random.getstate(), np.random.get_state()
    try:
        # vLLM seeds every global generator and, on a CPU, replaces torch.set_num_threads by a warning.
        with torch.random.fork_rng(), _quiet():
            llm = LLM(**options)
    except (ValueError, AssertionError, torch.cuda.OutOfMemoryError) as error:
        raise UserError(refusal(name, error)) from error
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
    core: Any = llm.llm_engine.engine_core
    # At its end an engine takes down the process groups of everybody: of other engines, and of the trainer.
    core._finalizer.detach()
    # It also hides from the garbage collector all that was alive at its start.
    gc.unfreeze()
    return llm


def refusal(name: str, error: Exception) -> str:
    """What to tell the user where vLLM does not start, in a sentence."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return (
            f"vLLM finds too little GPU memory for agent {name!r} ({_first_line(error)}): lower "
            "engine.gpu_memory_utilization or engine.kv_cache_gib, end what else uses the GPU, or use "
            "engine.kind=transformers"
        )
    return (
        f"vLLM cannot serve agent {name!r} ({_first_line(error)}): change the engine settings it names, or use "
        "engine.kind=transformers"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings about other libraries' deprecations, which nobody here can act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _first_line(error: BaseException) -> str:
    """The line of an error that says something: pydantic starts with a count of errors."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("Value error, ")]
    line = (telling or lines or [type(error).__name__])[0].removeprefix("Value error, ")
    return line.split(" [type=")[0].rstrip(".")


def _seed(seed: int, number: int) -> int:
    """Seed of one prompt's first sample; vLLM counts up from it, so those of other prompts must lie far away."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2
