"""How long new weights take to another process: published, read, checked and copied over its own, by each transport.

The tensors are those of Qwen2.5-1.5B in bfloat16 (or `--scale` of its layers). A second process on the same machine
holds its own copy and says when it has the new version; the time is from the begin of a publish to that. On a GPU the
way is CUDA IPC, on a CPU shared memory; the peer is the safetensors file that works everywhere.

With `--readers 2` two processes read, or more, and a broadcast to all of them is measured against the ways by which
each reads for itself. On one machine they share its memory and its cores: this says what a broadcast costs there, not
what it saves between machines, where the learner sends once what it would send to each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from harness import make_parser, report
from ponder.nets.broadcast_weights import BroadcastTransport
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder
from ponder.nets.publish_weights import WeightManifest, WeightPublisher, WeightReader
from ponder.nets.tcp_weights import TcpTransport
from ponder.nets.weight_transports import FileTransport, WeightTransport, pick_transport

HERE = "127.0.0.1"
LAYERS = 28
WARM_UP = 2  # publishes that are not counted: buffers are made in the first, and opened in the first two


def make_net(layers: int, device: str) -> Decoder:
    config = DecoderConfig(
        "qwen2", 151936, 1536, layers, 12, 2, 128, mlp_width=8960, context=4096, qkv_bias=True, tied_embeddings=True
    )
    with torch.device("meta"):
        net = Decoder(config).to(torch.bfloat16).requires_grad_(False)
    net.to_empty(device=device)  # the numbers do not matter
    net.lm_head.weight = net.embed_tokens.weight
    return net


def read_on(layers: int, device: str) -> None:
    """The second process: loads each version that it is told of."""
    net = make_net(layers, device)
    reader = WeightReader(net.device)
    print("ready", flush=True)
    for line in sys.stdin:
        reader.load_into(net, WeightManifest.from_json(json.loads(line)))
        print(f"loaded {next(net.parameters()).flatten()[0].item()}", flush=True)


class Readers:
    """The other processes."""

    def __init__(self, count: int, layers: int, device: str) -> None:
        command = [sys.executable, __file__, "--reader", "--layers", str(layers), "--device", device]
        self._children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        self.names = [f"process {child.pid}" for child in self._children]
        assert self.replies() == ["ready"] * count

    def tell(self, manifests: Sequence[WeightManifest]) -> None:
        for child, manifest in zip(self._children, manifests, strict=True):
            assert child.stdin is not None
            child.stdin.write(json.dumps(manifest.to_json()) + "\n")
            child.stdin.flush()

    def replies(self) -> list[str]:
        return [child.stdout.readline().strip() for child in self._children if child.stdout is not None]

    def close(self) -> None:
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
        for child in self._children:
            child.wait(60)


def publish_seconds(transport: WeightTransport, net: Decoder, readers: Readers, repeats: int) -> list[float]:
    publisher, tensors = WeightPublisher(transport), {n: p.detach() for n, p in net.named_parameters()}
    times = []
    for version in range(repeats + WARM_UP):
        next(iter(tensors.values())).fill_(version)
        if net.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        manifest = publisher.publish(version, tensors)
        if isinstance(transport, BroadcastTransport):
            readers.tell([replace(manifest, source=source) for source in transport.invite(readers.names)])
            transport.send()
        else:
            readers.tell([manifest] * len(readers.names))
        assert readers.replies() == [f"loaded {float(version)}"] * len(readers.names)
        times.append(time.perf_counter() - began)
    print(f"{transport.name}: {times}", file=sys.stderr, flush=True)
    return times[WARM_UP:]


def report_broadcast(
    fast: WeightTransport, net: Decoder, nbytes: int, readers: Readers, folder: Path, args: argparse.Namespace
) -> None:
    broadcast = BroadcastTransport(HERE, net.device, FileTransport(folder))
    ours, backend = publish_seconds(broadcast, net, readers, args.repeats), broadcast.backend
    peers = {}
    for each in (TcpTransport(HERE), fast, FileTransport(folder)):
        peers[each.name] = publish_seconds(
            each, net, readers, args.repeats if each.name != "file" else args.file_repeats
        )
        each.close()
    broadcast.close()
    readers.close()
    report(
        "publish_weights_broadcast",
        f"{nbytes / 1e9:.2f} GB of bfloat16 weights to {args.readers} other processes of this machine, a broadcast by"
        f" {backend} against ways by which each reads for itself",
        statistics.median(ours),
        {name: statistics.median(seconds) for name, seconds in peers.items()},
        unit="s",
        better="lower",
        device=args.device,
        packages=["torch"],
        details={
            "readers": args.readers,
            "backend": backend,
            "seconds": {"broadcast": ours, **peers},
            "gigabytes_per_second_to_each": nbytes / 1e9 / statistics.median(ours),
        },
    )


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--layers", type=int, default=LAYERS)
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--file-repeats", type=int, default=3, help="of the file, which takes seconds")
    flags.add_argument("--readers", type=int, default=1, help="processes that read; above 1: a broadcast to them, too")
    flags.add_argument("--reader", action="store_true", help="be one of them")
    args = flags.parse_args()
    if args.reader:
        read_on(args.layers, args.device)
        return
    net = make_net(args.layers, args.device)
    nbytes = sum(p.numel() * p.element_size() for p in net.parameters())
    readers = Readers(args.readers, args.layers, args.device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fast = pick_transport(net.device, folder)
        if args.readers > 1:
            report_broadcast(fast, net, nbytes, readers, folder, args)
            return
        ours = publish_seconds(fast, net, readers, args.repeats)
        file = publish_seconds(FileTransport(folder), net, readers, args.file_repeats)
    readers.close()
    report(
        "publish_weights",
        f"{nbytes / 1e9:.2f} GB of bfloat16 weights to another process, {fast.name} against a file",
        statistics.median(ours),
        {"file": statistics.median(file)},
        unit="s",
        better="lower",
        device=args.device,
        packages=["torch"],
        details={
            "seconds": {fast.name: ours, "file": file},
            "gigabytes_per_second": nbytes / 1e9 / statistics.median(ours),
        },
    )


if __name__ == "__main__":
    main()
