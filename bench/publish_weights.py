"""How long new weights take to another process: published, read, checked and copied over its own, by each transport.

The tensors are those of Qwen2.5-1.5B in bfloat16 (or `--scale` of its layers). A second process on the same machine
holds its own copy and says when it has the new version; the time is from the begin of a publish to that. On a GPU the
way is CUDA IPC, on a CPU shared memory; the peer is the safetensors file that works everywhere.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from harness import make_parser, report
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import Decoder
from ponder.nets.publish_weights import WeightManifest, WeightPublisher, WeightReader
from ponder.nets.weight_transports import FileTransport, WeightTransport, pick_transport

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
    net, reader = make_net(layers, device), WeightReader()
    print("ready", flush=True)
    for line in sys.stdin:
        reader.load_into(net, WeightManifest.from_json(json.loads(line)))
        print(f"loaded {next(net.parameters()).flatten()[0].item()}", flush=True)


def publish_seconds(transport: WeightTransport, net: Decoder, layers: int, device: str, repeats: int) -> list[float]:
    publisher, tensors = WeightPublisher(transport), {n: p.detach() for n, p in net.named_parameters()}
    command = [sys.executable, __file__, "--reader", "--layers", str(layers), "--device", device]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    times = []
    try:
        assert child.stdout.readline().strip() == "ready"
        for version in range(repeats + WARM_UP):
            next(iter(tensors.values())).fill_(version)
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            child.stdin.write(json.dumps(publisher.publish(version, tensors).to_json()) + "\n")
            child.stdin.flush()
            assert child.stdout.readline().split() == ["loaded", str(float(version))]
            times.append(time.perf_counter() - began)
    finally:
        child.stdin.close()
        child.wait(60)
        publisher.close()
    print(f"{transport.name}: {times}", file=sys.stderr, flush=True)
    return times[WARM_UP:]


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--layers", type=int, default=LAYERS)
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--file-repeats", type=int, default=3, help="of the file, which takes seconds")
    flags.add_argument("--reader", action="store_true", help="be the second process")
    args = flags.parse_args()
    if args.reader:
        read_on(args.layers, args.device)
        return
    net = make_net(args.layers, args.device)
    nbytes = sum(p.numel() * p.element_size() for p in net.parameters())
    with tempfile.TemporaryDirectory() as folder:
        fast = pick_transport(net.device, Path(folder))
        ours = publish_seconds(fast, net, args.layers, args.device, args.repeats)
        file = publish_seconds(FileTransport(folder), net, args.layers, args.device, args.file_repeats)
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
