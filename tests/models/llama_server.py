"""A llama.cpp server in a process of its own: `python llama_server.py FILE.gguf CONTEXT SLOTS`.

It prints its address when it is ready, and ends when its input does.
"""

from __future__ import annotations

import sys


def main() -> None:
    import xllamacpp

    path, context, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.port = 0  # a free one
    params.n_parallel, params.n_ctx = slots, slots * context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = params.fit_params = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
