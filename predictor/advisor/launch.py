"""Commands that start a serving engine as a deployment needs it."""

from __future__ import annotations

from predictor.advisor.deployments import Placed
from predictor.serving.loads import before_ampere

_VLLM = "vllm serve {model}{split} --max-num-seqs {users} --max-model-len {length}"
_VLLM_STAGES = " --pipeline-parallel-size {stages} --distributed-executor-backend ray"
_SGLANG = (
    "python -m sglang.launch_server --model-path {model} --tp {devices}{split} --max-running-requests {users} "
    "--context-length {length}"
)
_SGLANG_STAGES = " --pp-size {stages} --nnodes {stages} --node-rank 0 --dist-init-addr FIRST_HOST:20000"
_TRTLLM = "trtllm-serve {model} --tp_size {devices}{split} --max_batch_size {users} --max_seq_len {length}"
_TRTLLM_STAGES = "mpirun -n {all_devices} --hostfile HOSTS trtllm-llmapi-launch "
_LLAMA_CPP = "llama-server -m {file}.gguf -ngl 999 --parallel {users} --ctx-size {context}"


def launch_command(placed: Placed, model: str, longest: int) -> str:
    """Return the command that starts one copy, for requests of up to so many tokens in and out.

    TensorRT-LLM reads some of its options from a file, which the command writes first.
    """
    deployment = placed.deployment
    apart, stages = deployment.attention_copies > 1, deployment.stages
    devices = deployment.devices // stages
    small_cache = deployment.cache_type == "fp8"
    users = placed.most_running
    fields = {"model": model, "devices": devices, "users": users, "length": longest, "context": longest * users}
    half = " --dtype half" if lacks_bfloat16(placed) else ""
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
        return _SGLANG.format(split=split, **fields) + half + (" --kv-cache-dtype fp8_e5m2" if small_cache else "")
    if deployment.engine == "trtllm":
        split = f" --ep_size {devices}" if apart else f" --pp_size {stages}" if stages > 1 else ""
        launcher = _TRTLLM_STAGES.format(all_devices=deployment.devices) if stages > 1 else ""
        command = launcher + _TRTLLM.format(split=split, **fields)
        options = ["enable_attention_dp: true"] * apart + ["kv_cache_config: {dtype: fp8}"] * small_cache
        if not options:
            return command
        lines = " ".join(f"'{option}'" for option in options)
        return f"printf '%s\\n' {lines} > options.yaml && {command} --extra_llm_api_options options.yaml"
    return _LLAMA_CPP.format(file=model.rpartition("/")[2], **fields)


def lacks_bfloat16(placed: Placed) -> bool:
    """Return True where a deployment in bfloat16 has to run in float16, because its GPUs have no bfloat16."""
    return before_ampere(placed.deployment.device) and placed.deployment.quantization == "bfloat16"
