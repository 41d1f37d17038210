"""Commands that start a serving engine as a deployment needs it.

Add an engine here: a function that returns its command, and its entries in `_COMMANDS` and, if it serves disaggregated,
in `_ROLES`, `_PORTS` and `_ROUTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from predictor.advisor.serving.deployments import DeploymentPlan
from predictor.serving.disaggregated import prompt_deployment
from predictor.serving.engines import TYPES_WITH_OWN_CODE
from predictor.serving.loads import Deployment
from predictor.serving.measured_loads import version_key
from predictor.serving.models import Sharding
from predictor.serving.quantization import CACHE_BYTES
from predictor.serving.stored_weights import format_of_hub_id

_NIXL = """ --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
_ON_ALL_INTERFACES = " --host 0.0.0.0"
"""Workers of SGLang and TensorRT-LLM answer on their own host alone by default."""
_TRANSCEIVER = "cache_transceiver_config: {backend: DEFAULT}"


class _Role(NamedTuple):
    """Part of disaggregated serving, a worker for prompts or a copy that generates, as its command tells it."""

    host: str
    """Stands for the worker's host, with a number behind it."""
    options: str
    in_file: tuple[str, ...] = ()
    """Lines of TensorRT-LLM's file of options."""
    file: str = "options.yaml"


_PROMPTS, _COPY = "PROMPTS", "COPY"
_ROLES = {
    "vllm": (_Role(_PROMPTS, _NIXL), _Role(_COPY, _NIXL)),
    "sglang": (
        _Role(_PROMPTS, f"{_ON_ALL_INTERFACES} --disaggregation-mode prefill"),
        _Role(_COPY, f"{_ON_ALL_INTERFACES} --disaggregation-mode decode"),
    ),
    "trtllm": (
        _Role(_PROMPTS, _ON_ALL_INTERFACES, ("disable_overlap_scheduler: true", _TRANSCEIVER), "prompts.yaml"),
        _Role(_COPY, _ON_ALL_INTERFACES, (_TRANSCEIVER,), "copies.yaml"),
    ),
}
"""Roles of both kinds of workers, by engine."""
_AGGREGATED = _Role("", "")
_ROUTERS = {
    "vllm": "vllm-router --vllm-pd-disaggregation",
    "sglang": "python -m sglang_router.launch_router --pd-disaggregation",
}
_FP8_BLOCK = 128
"""Weights along an edge of the blocks that share a scale in repositories of fp8."""
_TRTLLM_TOKENS_AT_ONCE = 8192
"""Longest prompt that TensorRT-LLM takes unless it computes prompts in chunks, by default."""
_ATTENTION_SIZE_SINCE = version_key("0.5.22")
"""First version of SGLang with `--attn-dp-size`; what it replaces is promised until the end of 2026."""
_PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000}
"""Each engine's default."""


@dataclass(frozen=True)
class _Worker:
    """One engine process to start."""

    deployment: Deployment
    role: _Role
    model: str
    users: int
    """Most requests at once."""
    longest: int
    """Tokens of the longest request, in and out."""
    sharding: Sharding

    @property
    def devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.deployment.devices // self.deployment.stages

    @property
    def splits_attention(self) -> bool:
        """True if each device has attention of its own (data-parallel attention)."""
        return self.deployment.attention_copies > 1

    @property
    def has_own_code(self) -> bool:
        """True if the model's repository brings code that the engine has to run."""
        return self.sharding.model_type in TYPES_WITH_OWN_CODE

    @property
    def keeps_experts_whole(self) -> bool:
        """True if experts are dealt out whole, because vLLM and SGLang start with no part of a block of fp8 weights."""
        width = self.sharding.expert_width
        return self.deployment.quantization == "fp8" and self.devices > 1 and width % (self.devices * _FP8_BLOCK) > 0

    @property
    def small_cache(self) -> bool:
        """True if keys and values take a byte each: engines keep 16 bits unless told, which was not planned with."""
        return self.deployment.cache_bytes == CACHE_BYTES["fp8"]


def launch_command(plan: DeploymentPlan, model: str, longest: int) -> str:
    """Return the command that starts one copy, for requests of up to so many tokens in and out.

    TensorRT-LLM reads some of its options from a file, which the command writes first. Where prompts are computed apart
    there is a line for a worker for prompts, one for a copy, and one for the router.
    """
    deployment, users = plan.deployment, plan.most_running
    if deployment.prompts is None:
        return _command(_Worker(deployment, _AGGREGATED, model, users, longest, plan.sharding))
    both = prompt_deployment(deployment), replace(deployment, prompts=None)
    workers = [
        _Worker(own, role, model, users, longest, plan.sharding)
        for own, role in zip(both, _ROLES[deployment.engine], strict=True)
    ]
    return "\n".join([*map(_command, workers), _router(plan)])


def lacks_bfloat16(deployment: Deployment) -> bool:
    """Return whether a deployment has to compute in float16, because its GPUs have no bfloat16."""
    return deployment.device.before_ampere and deployment.quantization != "float16"


def runs_own_code(plan: DeploymentPlan) -> bool:
    """Return whether the command runs code of the model's repository."""
    return plan.deployment.engine != "llama.cpp" and plan.sharding.model_type in TYPES_WITH_OWN_CODE


def _command(worker: _Worker) -> str:
    return _COMMANDS[worker.deployment.engine](worker) + worker.role.options


def _vllm(worker: _Worker) -> str:
    # Workers fetch keys and values from the host that this variable names.
    host = worker.role.host and f"VLLM_NIXL_SIDE_CHANNEL_HOST={worker.role.host}_1 "
    parallel = (
        f"--data-parallel-size {worker.devices}"
        if worker.splits_attention
        else f"--tensor-parallel-size {worker.devices}"
    )
    parallel += " --enable-expert-parallel" * (worker.splits_attention or worker.keeps_experts_whole)
    if worker.deployment.stages > 1:
        parallel += f" --pipeline-parallel-size {worker.deployment.stages} --distributed-executor-backend ray"
    return (
        f"{host}vllm serve {worker.model} {parallel} --max-num-seqs {worker.users} --max-model-len {worker.longest}"
        + " --trust-remote-code" * worker.has_own_code
        + " --dtype half" * lacks_bfloat16(worker.deployment)
        + " --kv-cache-dtype fp8" * worker.small_cache
    )


def _sglang(worker: _Worker) -> str:
    devices, stages = worker.devices, worker.deployment.stages
    parallel = f"--tp {devices}"
    if worker.splits_attention:
        asked = worker.deployment.engine_version
        is_old = asked is not None and version_key(asked) < _ATTENTION_SIZE_SINCE
        parallel += f" --dp {devices} --enable-dp-attention" if is_old else f" --attn-dp-size {devices}"
    parallel += f" --ep-size {devices}" * (worker.splits_attention or worker.keeps_experts_whole)
    if stages > 1:
        parallel += f" --pp-size {stages} --nnodes {stages} --node-rank 0 --dist-init-addr FIRST_HOST:20000"
    return (
        f"python -m sglang.launch_server --model-path {worker.model} {parallel} --max-running-requests {worker.users} "
        f"--context-length {worker.longest}"
        + " --trust-remote-code" * worker.has_own_code
        + " --dtype half" * lacks_bfloat16(worker.deployment)
        + " --kv-cache-dtype fp8_e4m3" * worker.small_cache
    )


def _trtllm(worker: _Worker) -> str:
    devices, stages = worker.devices, worker.deployment.stages
    launcher, parallel = "", f"--tp_size {devices}"
    if stages > 1:
        launcher = f"mpirun -n {worker.deployment.devices} --hostfile HOSTS trtllm-llmapi-launch "
    if worker.splits_attention:
        parallel += f" --ep_size {devices}"
    elif stages > 1:
        parallel += f" --pp_size {stages}"
    command = (
        f"{launcher}trtllm-serve {worker.model} {parallel} --max_batch_size {worker.users} "
        f"--max_seq_len {worker.longest}"
    )
    command += " --enable_chunked_prefill" * (worker.longest > _TRTLLM_TOKENS_AT_ONCE)
    command += " --trust_remote_code" * worker.has_own_code
    in_file = [
        *["enable_attention_dp: true"] * worker.splits_attention,
        *["kv_cache_config: {dtype: fp8}"] * worker.small_cache,
        *worker.role.in_file,
    ]
    if not in_file:
        return command
    file = worker.role.file
    return f"{_write_lines(in_file, file)} && {command} --extra_llm_api_options {file}"


def _llama_cpp(worker: _Worker) -> str:
    # It fetches repositories of GGUF files by itself; any other model is converted to such a file before.
    is_repository = "/" in worker.model and format_of_hub_id(worker.model) == "gguf"
    name = worker.model.rpartition("/")[2].removesuffix(".gguf")
    file = f"-hf {worker.model}" if is_repository else f"-m {name}.gguf"
    # Its context is shared by all requests at once.
    return f"llama-server {file} -ngl 999 --parallel {worker.users} --ctx-size {worker.longest * worker.users}"


_COMMANDS: dict[str, Callable[[_Worker], str]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "llama.cpp": _llama_cpp,
}


def _router(plan: DeploymentPlan) -> str:
    """Return the command that sends prompts to the one kind of workers, and what follows to the other."""
    engine = plan.deployment.engine
    prompts, copies = (
        [f"{host}_{number}:{_PORTS[engine]}" for number in range(1, count + 1)]
        for host, count in ((_PROMPTS, plan.prompt_workers), (_COPY, plan.copies))
    )
    if engine != "trtllm":
        urls = [*(f"--prefill http://{each}" for each in prompts), *(f"--decode http://{each}" for each in copies)]
        return " ".join([_ROUTERS[engine], *urls])
    servers = [
        f"{kind}: {{num_instances: {len(urls)}, urls: [{', '.join(urls)}]}}"
        for kind, urls in (("context_servers", prompts), ("generation_servers", copies))
    ]
    lines = ["hostname: 0.0.0.0", "port: 8000", *servers]
    return f"{_write_lines(lines, 'workers.yaml')} && trtllm-serve disaggregated -c workers.yaml"


def _write_lines(lines: list[str], file: str) -> str:
    """Return the shell command that writes these lines into a file."""
    quoted = " ".join(f"'{line}'" for line in lines)
    return f"printf '%s\\n' {quoted} > {file}"
