"""Chooses the runner for a network and its device."""

from __future__ import annotations

from importlib.util import find_spec

from ponder.engine import cpu_decode_runner, cpu_fused_layers, cpu_merged_layers, cpu_packed_weights
from ponder.engine.cpu_decode_library import load_library
from ponder.engine.fused_weights import QUANTIZED_DTYPES
from ponder.engine.model_runner import ModelRunner
from ponder.engine.sharded_runner import ShardedRunner
from ponder.errors import UnknownName, UsageError
from ponder.nets import lora
from ponder.nets.decoder import Decoder
from ponder.nets.tensor_parallel import DecoderShard


def make_runner(net: Decoder, slots: int, max_num_seqs: int, cuda_graphs: bool, quantization: str) -> ModelRunner:
    """For a network that is split, its shards'; CUDA graphs on a GPU; on a CPU packed weights, or merged layers where
    the network is small; else plain torch, as for a network that sees on a CPU, or whose positions have three
    components."""
    if quantization and quantization not in QUANTIZED_DTYPES:
        raise UnknownName("quantization", quantization, QUANTIZED_DTYPES)
    if isinstance(net, DecoderShard):
        if quantization:
            raise UsageError(f"{quantization} weights are for a network on one GPU: leave out --tensor-parallel")
        return ShardedRunner(net, slots)
    if net.config.vision is not None:
        if quantization:
            raise UsageError(f"{quantization} weights are for networks that read text only")
        if net.device.type != "cuda" or net.config.rope.sections:  # the kernels rotate by places in the sequence
            return ModelRunner(net, slots)
    rounds_adapter_base = bool(quantization) and lora.has_adapter(net)
    if cuda_graphs and net.device.type == "cuda" and find_spec("triton") and not rounds_adapter_base:
        from ponder.engine.cuda_graph_runner import CudaGraphRunner

        return CudaGraphRunner(net, slots, max_num_seqs, quantization)
    if quantization:
        raise UsageError(
            f"{quantization} weights are for an NVIDIA GPU with triton, and for a network without adapters"
        )
    if net.device.type == "cpu" and cpu_packed_weights.is_worthwhile(net):
        if cpu_decode_runner.is_supported_large(net) and load_library() is not None:
            return cpu_decode_runner.FewSequencesRunner(net, slots)
        return cpu_fused_layers.FusedLayersRunner(net, slots)
    if net.device.type == "cpu" and cpu_decode_runner.is_supported(net) and load_library() is not None:
        return cpu_decode_runner.CompiledDecodeRunner(net, slots)
    if net.device.type == "cpu" and cpu_merged_layers.is_supported(net):
        return cpu_merged_layers.MergedLayersRunner(net, slots)
    return ModelRunner(net, slots)
