"""Commands that start a serving engine as a deployment needs it."""

from __future__ import annotations

from dataclasses import replace

from predictor.advisor.serving.deployments import DeploymentPlan
from predictor.serving.disaggregated import prompt_deployment
from predictor.serving.quantization import CACHE_BYTES
from predictor.serving.stored_weights import format_of_hub_id

_VLLM = "vllm serve {model}{split} --max-num-seqs {users} --max-model-len {length}"
_VLLM_STAGES = " --pipeline-parallel-size {stages} --distributed-executor-backend ray"
_SGLANG = (
    "python -m sglang.launch_server --model-path {model} --tp {devices}{split} --max-running-requests {users} "
    "--context-length {length}"
)
_SGLANG_STAGES = " --pp-size {stages} --nnodes {stages} --node-rank 0 --dist-init-addr FIRST_HOST:20000"
_TRTLLM = "trtllm-serve {model} --tp_size {devices}{split} --max_batch_size {users} --max_seq_len {length}"
_TRTLLM_STAGES = "mpirun -n {all_devices} --hostfile HOSTS trtllm-llmapi-launch "
_LLAMA_CPP = "llama-server {file} -ngl 999 --parallel {users} --ctx-size {context}"
_NIXL = """ --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
_SEEN = " --host 0.0.0.0"
"""Workers of SGLang and TensorRT-LLM answer on their own host alone by default."""
_PARTS = {
    "vllm": (_NIXL, _NIXL),
    "sglang": (f"{_SEEN} --disaggregation-mode prefill", f"{_SEEN} --disaggregation-mode decode"),
    "trtllm": (_SEEN, _SEEN),
}
"""Options of a worker for prompts, and of a copy that generates."""
_HOSTS = ("PROMPTS", "COPY")
"""Stand for the hosts of both, with a number."""
_TRTLLM_PARTS = (
    ("disable_overlap_scheduler: true", "cache_transceiver_config: {backend: DEFAULT}"),
    ("cache_transceiver_config: {backend: DEFAULT}",),
)
"""The same in TensorRT-LLM's file of options."""
_ROUTERS = {
    "vllm": "vllm-router --vllm-pd-disaggregation",
    "sglang": "python -m sglang_router.launch_router --pd-disaggregation",
}
_PORTS = {"vllm": 8000, "sglang": 30000, "trtllm": 8000}
"""Each engine's default."""


def launch_command(plan: DeploymentPlan, model: str, longest: int) -> str:
    """Return the command that starts one copy, for requests of up to so many tokens in and out.

    TensorRT-LLM reads some of its options from a file, which the command writes first. Where prompts are computed apart
    there is a line for a worker for prompts, one for a copy, and one for the router.
    """
    deployment = plan.deployment
    if deployment.prompts is None:
        return _one_engine(plan, model, longest)
    engines = (prompt_deployment(deployment), replace(deployment, prompts=None))
    in_command = _PARTS[deployment.engine]
    # vLLM's workers fetch keys and values from the host that this names.
    before = [f"VLLM_NIXL_SIDE_CHANNEL_HOST={host}_1 " if deployment.engine == "vllm" else "" for host in _HOSTS]
    in_file = _TRTLLM_PARTS if deployment.engine == "trtllm" else ((), ())
    lines = [
        first + _one_engine(replace(plan, deployment=engine), model, longest, options, file) + more
        for first, engine, more, options, file in zip(
            before, engines, in_command, in_file, ("prompts.yaml", "copies.yaml"), strict=True
        )
    ]
    return "\n".join([*lines, _router(plan)])


def _router(plan: DeploymentPlan) -> str:
    """Return the command that sends prompts to the one kind of workers, and what follows to the other."""
    engine = plan.deployment.engine
    prompts, copies = (
        [f"{kind}_{number}:{_PORTS[engine]}" for number in range(1, count + 1)]
        for kind, count in zip(_HOSTS, (plan.prompt_workers, plan.copies), strict=True)
    )
    if engine != "trtllm":
        urls = [*(f"--prefill http://{each}" for each in prompts), *(f"--decode http://{each}" for each in copies)]
        return " ".join([_ROUTERS[engine], *urls])
    servers = (
        f"'{kind}: {{num_instances: {len(urls)}, urls: [{', '.join(urls)}]}}'"
        for kind, urls in (("context_servers", prompts), ("generation_servers", copies))
    )
    lines = " ".join(["'hostname: 0.0.0.0'", "'port: 8000'", *servers])
    return f"printf '%s\\n' {lines} > workers.yaml && trtllm-serve disaggregated -c workers.yaml"


def _one_engine(
    plan: DeploymentPlan, model: str, longest: int, in_file: tuple[str, ...] = (), file: str = "options.yaml"
) -> str:
    deployment = plan.deployment
    apart, stages = deployment.attention_copies > 1, deployment.stages
    devices = deployment.devices // stages
    # Engines keep 16 bits for each number unless told, and what fits and how long it takes is of a byte.
    small_cache = deployment.cache_bytes == CACHE_BYTES["fp8"]
    users = plan.most_running
    fields = {"model": model, "devices": devices, "users": users, "length": longest, "context": longest * users}
    half = " --dtype half" if lacks_bfloat16(plan) else ""
    if deployment.engine == "vllm":
        split = (
            f" --data-parallel-size {devices} --enable-expert-parallel"
            if apart
            else f" --tensor-parallel-size {devices}"
        )
        split += _VLLM_STAGES.format(stages=stages) if stages > 1 else ""
        return _VLLM.format(split=split, **fields) + half + (" --kv-cache-dtype fp8" if small_cache else "")
    if deployment.engine == "sglang":
        split = f" --dp {devices} --enable-dp-attention --ep-size {devices}" if apart else ""
        split += _SGLANG_STAGES.format(stages=stages) if stages > 1 else ""
        return _SGLANG.format(split=split, **fields) + half + (" --kv-cache-dtype fp8_e4m3" if small_cache else "")
    if deployment.engine == "trtllm":
        split = f" --ep_size {devices}" if apart else f" --pp_size {stages}" if stages > 1 else ""
        launcher = _TRTLLM_STAGES.format(all_devices=deployment.devices) if stages > 1 else ""
        command = launcher + _TRTLLM.format(split=split, **fields)
        options = ["enable_attention_dp: true"] * apart + ["kv_cache_config: {dtype: fp8}"] * small_cache
        options += in_file
        if not options:
            return command
        lines = " ".join(f"'{option}'" for option in options)
        return f"printf '%s\\n' {lines} > {file} && {command} --extra_llm_api_options {file}"
    # It fetches repositories of GGUF files by itself; any other model is converted to such a file before.
    is_repository = "/" in model and format_of_hub_id(model) == "gguf"
    file = f"-hf {model}" if is_repository else f"-m {model.rpartition('/')[2].removesuffix('.gguf')}.gguf"
    return _LLAMA_CPP.format(file=file, **fields)


def lacks_bfloat16(plan: DeploymentPlan) -> bool:
    """Return True where a deployment has to compute in float16, because its GPUs have no bfloat16."""
    return plan.deployment.device.before_ampere and plan.deployment.quantization != "float16"
