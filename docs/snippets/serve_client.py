"""Serve a model, and ask it with OpenAI's own client: eight beams, at most 400 tokens in all."""

import subprocess
import sys

from openai import OpenAI

command = [sys.executable, "-m", "ponder", "serve", "smollm2", "--port", "8123"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    print(server.stdout.readline().strip())  # serving smollm2 at http://127.0.0.1:8123/v1
    client = OpenAI(base_url="http://127.0.0.1:8123/v1", api_key="none")
    reply = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is 27 + 58?"}],
        max_completion_tokens=400,
        extra_body={"strategy": {"name": "beam-search", "n": 8, "beam_width": 4}},
    )
    print(reply.choices[0].message.content, reply.usage)
    server.terminate()
