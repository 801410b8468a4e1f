"""The process of a shard of a replica, other than the first: it runs the passes that the first one sends."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from ponder.engine.sharded_runner import FollowingRunner
from ponder.models.load import load_shard
from ponder.models.replicas.shard_processes import end_with_parent, pack_message, read_message
from ponder.nets.config import from_hf
from ponder.nets.gpu_share import limit_gpu_memory
from ponder.nets.load_weights import empty_decoder
from ponder.nets.publish_weights import WeightManifest, WeightReader
from ponder.nets.shard_group import join_shards
from ponder.nets.tensor_parallel import DecoderShard, Shard


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Do what the messages say until they end."""
    opened = read_message(source)
    if opened is None:
        return
    settings = opened[0]
    net = build_net(settings)
    runner, weights = FollowingRunner(net), WeightReader()
    reply: dict[str, Any] | None = {"kind": "built"}
    while True:
        if reply is not None:
            sink.write(pack_message(reply))
            sink.flush()
        received = read_message(source)
        if received is None:
            return
        message, body = received
        if message["kind"] == "join":
            where, backend = Path(settings["store"]), settings["backend"]
            net.all_reduce = join_shards(net.shard, where, backend, net.device, settings["deadline"])
            reply = {"kind": "joined"}
        elif message["kind"] == "weights":
            weights.load_into(net, WeightManifest.from_json(message["manifest"]))
            reply = {"kind": "loaded"}
        else:
            reply = runner.take(message, body)


def build_net(message: Mapping[str, Any]) -> DecoderShard:
    """The network, with the weights of a model, or with none until the first version comes."""
    torch.set_num_threads(message["threads"])
    device, shard = torch.device(message["device"]), Shard(message["rank"], message["count"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        limit_gpu_memory(device)
    if (model := message.get("model")) is not None:
        return load_shard(model, device, message["dtype"], shard)[0].requires_grad_(False)
    net = empty_decoder(from_hf(message["config"]), getattr(torch, message["dtype"]), device, shard)
    assert isinstance(net, DecoderShard)
    return net


def main() -> None:
    end_with_parent()
    faulthandler.enable()
    output = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not get between the messages
    try:
        with os.fdopen(0, "rb") as source, os.fdopen(output, "wb") as sink:
            serve(source, sink)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
