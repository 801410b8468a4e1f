"""The server: OpenAI's APIs over ponder's strategies, where effort is compute."""
