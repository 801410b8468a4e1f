"""Group sampling as one writes it by hand in plain torch, sharing no code with ponder: the loop to beat.

Weights are read from a Hugging Face folder (Llama and Qwen2 shapes). Each prompt is computed once, its keys and values
are copied into a static cache for each of its completions, and one step, from tokens to tokens with their
log-probabilities, is captured in a CUDA graph that is replayed for every token. All sequences begin and end together.

Shapes: B sequences, P prompts, T tokens, L room of the cache, H query heads, K key heads, G = H / K, D head size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class PlainLoop:
    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        c = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if c["model_type"] not in ("llama", "qwen2") or c.get("rope_scaling"):
            raise SystemExit(f"the plain loop has no {c['model_type']} network: leave it out with --sides")
        self.device, self.dtype = torch.device(device), dtype
        self.heads, self.kv, self.eps = c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
        self.size = c.get("head_dim") or c["hidden_size"] // self.heads
        w: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            w |= {name.removeprefix("model."): t.to(device, dtype) for name, t in load_file(file).items()}

        def joined(*names: str) -> Tensor | None:
            return torch.cat([w[n] for n in names]) if names[0] in w else None

        self.layers: list[dict[str, Any]] = []
        for i in range(c["num_hidden_layers"]):
            own, mlp = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
            self.layers.append(
                {
                    "norm": w[f"layers.{i}.input_layernorm.weight"],
                    "qkv": joined(*(f"{own}{n}_proj.weight" for n in "qkv")),
                    "bias": joined(*(f"{own}{n}_proj.bias" for n in "qkv")),
                    "out": w[f"{own}o_proj.weight"],
                    "mlp_norm": w[f"layers.{i}.post_attention_layernorm.weight"],
                    "gate_up": joined(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
                    "down": w[f"{mlp}down_proj.weight"],
                }
            )
        self.embed, self.norm = w["embed_tokens.weight"], w["norm.weight"]
        self.head = w.get("lm_head.weight", self.embed)
        theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
        self.turn = 1.0 / theta ** (torch.arange(0, self.size, 2, device=device).float() / self.size)
        self.ready: dict[tuple[int, int, int], Static] = {}

    @torch.inference_mode()
    def __call__(
        self, given_PT: np.ndarray, seen_PT: np.ndarray, n: Sequence[int], tokens: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and log-probabilities, [B, tokens] each, after prompts padded on the left."""
        more = -given_PT.shape[1] % 16  # few shapes, so few captures
        given, seen = (torch.from_numpy(np.pad(a, ((0, 0), (more, 0)))).to(self.device) for a in (given_PT, seen_PT))
        prompt, rows = given.shape[1], torch.repeat_interleave(torch.tensor(n)).to(self.device)
        key = (len(rows), prompt, tokens)
        if key not in self.ready:
            self.ready = {key: Static(self, *key)}  # the last shape's only: a cache is large
        static = self.ready[key]
        hidden = self._prefill(given, seen.bool(), static, rows)
        static.padding_B.copy_((prompt - seen.sum(-1))[rows])
        static.at.fill_(prompt - 1)
        static.draw(hidden[rows])
        for _ in range(tokens - 1):
            static.step()
        return static.tokens.cpu().numpy(), static.logprobs.cpu().numpy()

    def _prefill(self, given_PT: Tensor, seen_PT: Tensor, static: Static, rows: Tensor) -> Tensor:
        length = given_PT.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=self.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=self.device)  # padding sees something, so it is finite
        mask = ((before & seen_PT[:, None]) | itself)[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            static.kv[layer][0, :, :, :length] = k[rows]
            static.kv[layer][1, :, :, :length] = v[rows]
            k, v = (x.repeat_interleave(self.heads // self.kv, dim=1) for x in (k, v))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        return self.forward(given_PT, (seen_PT.long().cumsum(-1) - 1).clamp(min=0), attend)[:, -1]

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, attend: Attend) -> Tensor:
        angle = (positions_BT[..., None].float() * self.turn).repeat(1, 1, 2)[:, None]
        cos, sin = angle.cos().to(self.dtype), angle.sin().to(self.dtype)
        x = F.embedding(tokens_BT, self.embed)
        (rows, length), width = tokens_BT.shape, x.shape[-1:]
        for i, w in enumerate(self.layers):
            qkv = F.linear(F.rms_norm(x, width, w["norm"], self.eps), w["qkv"], w["bias"])
            heads = qkv.view(rows, length, -1, self.size).transpose(1, 2)
            q, k, v = heads.split([self.heads, self.kv, self.kv], dim=1)
            mixed = attend(i, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
            x = x + F.linear(mixed.transpose(1, 2).reshape(rows, length, -1), w["out"])
            gate, up = F.linear(F.rms_norm(x, width, w["mlp_norm"], self.eps), w["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, w["down"])
        return F.rms_norm(x, width, self.norm, self.eps)


class Static:
    """The tensors that one shape of work lives in, and its captured step."""

    def __init__(self, loop: PlainLoop, rows: int, prompt: int, tokens: int) -> None:
        self.loop, self.prompt, device = loop, prompt, loop.device
        shape = (2, rows, loop.kv, prompt + tokens, loop.size)
        self.kv = [torch.zeros(shape, device=device, dtype=loop.dtype) for _ in loop.layers]
        self.newest_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.padding_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.at = torch.full((1,), prompt - 1, device=device)  # of the newest token that is in the cache
        self.tokens = torch.zeros(rows, tokens, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(rows, tokens, device=device)
        self.keys_L = torch.arange(prompt + tokens, device=device)
        self.graph: Any = None
        if device.type == "cuda" and tokens > 1:
            self._capture()

    def step(self) -> None:
        self._step() if self.graph is None else self.graph.replay()

    def draw(self, hidden_BE: Tensor) -> None:
        logprobs = F.linear(hidden_BE, self.loop.head).float().log_softmax(-1)
        noise = torch.empty_like(logprobs).exponential_()
        token = (logprobs - noise.log()).argmax(-1)  # Gumbel's trick
        place = self.at + 1 - self.prompt
        self.newest_B.copy_(token)
        self.tokens.index_copy_(1, place, token[:, None])
        self.logprobs.index_copy_(1, place, logprobs.gather(1, token[:, None]))

    def _step(self) -> None:
        self.at += 1
        room = len(self.keys_L) if self.at.is_cuda else int(self.at) + 1  # a graph's shapes are fixed
        keys = self.keys_L[:room]
        seen = ((keys <= self.at) & (keys >= self.padding_B[:, None]))[:, None, None]

        def attend(layer: int, q_BH1D: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kv = self.kv[layer]
            kv[0].index_copy_(2, self.at, k)
            kv[1].index_copy_(2, self.at, v)
            q_BKGD = q_BH1D.unflatten(1, (k.shape[1], -1))[:, :, :, 0]  # heads that share keys, as if in sequence
            mixed = F.scaled_dot_product_attention(q_BKGD, kv[0, :, :, :room], kv[1, :, :, :room], attn_mask=seen)
            return mixed.flatten(1, 2)[:, :, None]

        hidden = self.loop.forward(self.newest_B[:, None], (self.at - self.padding_B)[:, None], attend)
        self.draw(hidden[:, -1])

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.at.fill_(self.prompt - 1)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin
